"""`assay bundle`, and writing that ends before the file does."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.support.changing import changing
from conformance.support.full_disk import full_after, small_disk
from conformance.support.program import Assay, fault
from conformance.support.sparse_files import Sparse
from engine.aside import OutputError
from engine.gguf_file import GGUFError, GGUFFile
from engine.offload.bundle import bundles
from engine.offload.bundling import PIECE, bundle, unbundle

SMALL = Sparse()
FULL = r"cannot be written: (no space left on device|file too large)"
Write = Callable[..., None]
both_ways = pytest.mark.parametrize("write", [bundle, unbundle])


@pytest.fixture
def sources(tmp_path: Path) -> dict[Write, Path]:
    """A file for either way, in a folder of its own."""
    folder = tmp_path / "sources"
    folder.mkdir()
    return either(SMALL, folder)


def either(sizes: Sparse, folder: Path) -> dict[Write, Path]:
    plain, bundled = sizes.write(folder / "plain.gguf"), folder / "bundled.gguf"
    with GGUFFile(plain) as file:
        bundle(file, bundled)
    return {bundle: plain, unbundle: bundled}


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# The program


def test_there_and_back(inside: Assay, tmp_path: Path) -> None:
    """For people a line for each kind of bundle; the file that comes back is the first one."""
    plain, out, back = (tmp_path / name for name in ("plain.gguf", "out.gguf", "back.gguf"))
    Sparse(hidden=256, ffn=40, rows=(("Q8_0", "Q8_0", "Q8_0"), ("Q4_K", "Q4_K", "Q6_K"))).write(
        plain
    )
    code, told, _ = inside("bundle", plain, out)
    assert code == 0
    first, second = (line.strip("│").split() for line in told.splitlines() if "gate:" in line)
    assert " ".join(first) == "gate:Q8_0 up:Q8_0 down_t:Q8_0 │ 1 │ 40 │ 816 │ 1,536"
    assert " ".join(second) == "gate:Q4_K up:Q4_K down_t:Q6_K │ 2 │ 40 │ 498 │ 512"
    assert told.splitlines()[-1] == f"{out}: {out.stat().st_size:,} bytes, 30 tensors"
    code, told, _ = inside("bundle", "--undo", out, back)
    assert (code, told) == (0, f"{back}: {back.stat().st_size:,} bytes, 36 tensors\n")
    with GGUFFile(plain) as before, GGUFFile(back) as after:
        for name in before.tensors:
            assert before.tensor(name).tobytes() == after.tensor(name).tobytes()


def test_for_programs(inside: Assay, tmp_path: Path) -> None:
    out, back = tmp_path / "out.gguf", tmp_path / "back.gguf"
    said = json.loads(inside("bundle", "story-relu", out, "--json")[1])
    with GGUFFile(out) as file:
        assert (said["file"], said["bytes"]) == (str(out), file.size)
        assert said["tensors"] == len(file.tensors)
        for row, found in zip(said["bundles"], bundles(file).values(), strict=True):
            assert row["offset"] == file.tensors[f"blk.{row['block']}.ffn_bundle.weight"].offset
            assert (row["neurons"], row["hidden"]) == (found.neurons, found.hidden) == (768, 256)
            up = {"format": "Q8_0", "begin": 272, "n_bytes": 272}
            assert (row["stride"], row["parts"]["up"]) == (1536, up)
    said = json.loads(inside("bundle", "--undo", out, back, "--json")[1])
    assert (said["bundles"], said["bytes"]) == ([], back.stat().st_size)


def test_refusals_are_a_line(inside: Assay, sources: dict[Write, Path], tmp_path: Path) -> None:
    """Models without predictors, the same file, no folder."""
    out, plain = tmp_path / "out.gguf", sources[bundle]
    assert "no block has a predictor" in fault(inside("bundle", "story", out))
    assert fault(inside("bundle", "--undo", plain, out)) == f"{plain}: its neurons are not bundled"
    assert "it is the file that is read" in fault(inside("bundle", plain, plain))
    assert "there is no folder" in fault(inside("bundle", plain, tmp_path / "no" / "out.gguf"))
    assert left(tmp_path) == ["sources"]


def test_inspected(inside: Assay, sources: dict[Write, Path]) -> None:
    """Parts stand below their bundle, and zeros are no weights; a note says what makes no sense."""
    plain, out = sources.values()
    code, table, _ = inside("inspect", out)
    assert code == 0
    rows = [" ".join(line.strip("│").split()) for line in table.splitlines()]
    at = next(i for i, row in enumerate(rows) if row.startswith("blk.1.ffn_bundle.weight │ I8"))
    assert rows[at + 2] == "up │ F16 │ 600 x 32 │ 38,400 │ + 64"
    whole = inside("inspect", plain)[1].splitlines()[-1]
    weights = whole.partition("): ")[2].partition(" weights")[0]
    assert f"3 bundles): {weights} weights" in table.splitlines()[-1]
    described = json.loads(inside("inspect", out, "--json")[1])
    assert [row["block"] for row in described["bundles"]] == [0, 1, 2]
    spoilt = out.with_name("spoilt.gguf")
    inside("inspect", out, "--remove", "assay.bundle.formats", "-o", spoilt)
    code, table, note = inside("inspect", spoilt)
    assert (code, note.count("\n")) == (0, 1)
    assert "note: " in note
    assert "key assay.bundle.formats, which says what bundles hold, is missing" in note
    assert "3 I8" in table.splitlines()[-1]


# Files that are not finished


@both_ways
def test_a_full_disk(write: Write, sources: dict[Write, Path], tmp_path: Path) -> None:
    """Wherever it is full there is one line, and nothing."""
    folder = tmp_path / "disk"
    folder.mkdir()
    with GGUFFile(sources[write]) as file:
        for n_bytes in (4096, 2**16, 2**18):
            with small_disk(folder, n_bytes):
                with pytest.raises(OutputError, match=FULL):
                    write(file, folder / "out.gguf")
                assert left(folder) == []
            with full_after(n_bytes), pytest.raises(OutputError, match=FULL):
                write(file, folder / "out.gguf")
            assert left(folder) == []


@both_ways
@pytest.mark.parametrize("after", [1, 9, 20])
def test_interrupted(write: Write, after: int, sources: dict[Write, Path], tmp_path: Path) -> None:
    """Nothing is left, and what was there stays."""
    out, calls = tmp_path / "out.gguf", []
    out.write_bytes(b"before")

    def watch(done: int, total: int) -> None:
        calls.append(done)
        assert 0 < done <= total
        if len(calls) == after:
            raise KeyboardInterrupt

    with GGUFFile(sources[write]) as file, pytest.raises(KeyboardInterrupt):
        write(file, out, watch)
    assert len(calls) == after
    assert out.read_bytes() == b"before"
    assert left(tmp_path) == ["out.gguf", "sources"]


@both_ways
def test_the_last_word_is_all(write: Write, sources: dict[Write, Path], tmp_path: Path) -> None:
    """Whoever watches is told of every byte."""
    told: list[tuple[int, int]] = []
    with GGUFFile(sources[write]) as file:
        write(file, tmp_path / "out.gguf", lambda done, total: told.append((done, total)))
    with GGUFFile(tmp_path / "out.gguf") as file:
        total = sum(tensor.n_bytes for tensor in file.tensors.values())
    assert told == sorted(told)
    assert told[-1] == (total, total)


@both_ways
@changing
def test_the_source_changes_while_it_is_read(
    write: Write,
    change: Callable[[Path], None],
    message: str,
    sources: dict[Write, Path],
    tmp_path: Path,
) -> None:
    calls: list[int] = []

    def watch(done: int, _: int) -> None:
        if not calls:
            change(sources[write])
        calls.append(done)

    with GGUFFile(sources[write]) as file, pytest.raises(GGUFError, match=message):
        write(file, tmp_path / "out.gguf", watch)
    assert left(tmp_path) == ["sources"]


def test_memory(tmp_path: Path) -> None:
    """48 MB of neurons take a few pieces: the one that is written, and what it is made of."""
    large = Sparse(blocks=1, hidden=1024, ffn=8192)
    with_bundles = either(large, tmp_path)
    for write, source in with_bundles.items():
        with GGUFFile(source) as file:
            tracemalloc.start()
            write(file, tmp_path / "out.gguf")
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < 3 * PIECE < (tmp_path / "out.gguf").stat().st_size / 3
