"""Neuron bundles: their layout, the way back, and files with wrong bundles."""

import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from conformance.support.files.changing import changing
from conformance.support.models.small_families import SmallFalcon, SmallOPT, sparse
from conformance.support.models.sparse_files import MIXED, SMALL_MODELS, SmallSparse, Sparse, made
from engine.embedded import resolve
from engine.gguf.edit import keys_of
from engine.gguf.file import ALIGNMENT, GGUFError, GGUFFile
from engine.gguf.writer import NewTensor, u32, write_gguf
from engine.offload import bundling
from engine.offload.bundle import FORMATS_KEY, PAGE, PARTS, bundles, stride_of
from engine.offload.bundling import PIECE, bundle, unbundle
from reference.op import Array

BAMBOO = SmallSparse(architecture="bamboo", activation="drelu")
MODELS: dict[str, Callable[[Path], Path]] = {
    **{name: small.write for name, small in SMALL_MODELS.items()},
    "mixed": MIXED.write,
    "mixed, no gate": replace(MIXED, gated=False).write,
    "bamboo": BAMBOO.write,
    "Falcon": lambda path: sparse(SmallFalcon(), path),
    "OPT": lambda path: sparse(SmallOPT(), path),
}


@pytest.fixture
def source(tmp_path):
    return MIXED.write(tmp_path / "source.gguf")


def sources_of(file: GGUFFile, block: int) -> dict[str, Array]:
    """The stored rows of a block, by part."""
    names = {part: f"blk.{block}.ffn_{part}.weight" for part in PARTS}
    return {part: file.tensor(name) for part, name in names.items() if name in file.tensors}


@pytest.mark.parametrize("piece", [1, 5000, bundling.PIECE])
@pytest.mark.parametrize("name", MODELS)
def test_bundling_is_reversible(name, piece, tmp_path, monkeypatch):
    """For any formats and pieces, a row is gate, up and down_t of its neuron, then zeros; all else
    is unchanged, and unbundling restores the file."""
    monkeypatch.setattr(bundling, "PIECE", piece)
    source = MODELS[name](tmp_path / "source.gguf")
    out = made(bundle, source, tmp_path / "bundled.gguf")
    back = made(unbundle, out, tmp_path / "back.gguf")
    with GGUFFile(source) as before, GGUFFile(out) as after, GGUFFile(back) as undone:
        found = bundles(after)
        blocks = [i for i in range(99) if f"blk.{i}.fc1.weight" in before.tensors]
        assert blocks
        assert list(found) == blocks
        moved = set()
        for i in blocks:
            rows = sources_of(before, i)
            held = np.concatenate(list(rows.values()), axis=1)
            stored = after.tensor(f"blk.{i}.ffn_bundle.weight")
            assert np.array_equal(stored[:, : held.shape[1]], held)
            assert not stored[:, held.shape[1] :].any()
            assert stored.shape[1] == found[i].stride == stride_of(held.shape[1])
            assert after.tensors[found[i].name].offset == found[i].offset
            assert found[i].offset % PAGE == 0
            assert {part: p.n_bytes for part, p in found[i].parts.items()} == {
                part: array.shape[1] for part, array in rows.items()
            }
            moved |= {f"blk.{i}.ffn_{part}.weight" for part in rows}
        new = {bundle.name for bundle in found.values()}
        assert after.tensors.keys() - new == before.tensors.keys() - moved
        for tensor in after.tensors.keys() - new:
            assert np.array_equal(after.tensor(tensor), before.tensor(tensor)), tensor
        keys = keys_of(after)
        assert keys.pop(ALIGNMENT) == u32(PAGE)
        assert len(keys.pop(FORMATS_KEY)[1]) == len(blocks)
        assert keys == keys_of(before)
        assert after.magic == before.magic
        assert_same(before, undone)


def assert_same(before: GGUFFile, undone: GGUFFile) -> None:
    assert list(keys_of(undone).items()) == list(keys_of(before).items())
    assert (undone.magic, undone.version) == (before.magic, before.version)
    assert undone.tensors.keys() == before.tensors.keys()
    for name, tensor in before.tensors.items():
        assert (undone.tensors[name].type_name, undone.tensors[name].dims) == (
            tensor.type_name,
            tensor.dims,
        )
        assert np.array_equal(undone.tensor(name), before.tensor(name)), name


@pytest.mark.parametrize("alignment", [1, 64, 1 << 16])
def test_the_files_alignment_is_kept(alignment, source, tmp_path):
    """A larger alignment of the file is kept and restored."""
    named = tmp_path / "named.gguf"
    with GGUFFile(source) as file:
        keys = keys_of(file) | {ALIGNMENT: u32(alignment)}
        tensors = [NewTensor(t.name, t.type_name, t.dims) for t in file.tensors.values()]
        write_gguf(named, keys, tensors, (file.tensor(t.name) for t in tensors), magic="PWRI")
    out = made(bundle, named, tmp_path / "out.gguf")
    back = made(unbundle, out, tmp_path / "back.gguf")
    with GGUFFile(named) as before, GGUFFile(out) as file, GGUFFile(back) as undone:
        assert file.metadata[ALIGNMENT] == max(alignment, PAGE)
        assert bundles(file)
        assert_same(before, undone)


def test_only_blocks_with_predictors_are_bundled(source, tmp_path):
    """The last of three blocks has none, and is not bundled."""
    less = tmp_path / "less.gguf"
    with GGUFFile(source) as file:
        rest = [t for n, t in file.tensors.items() if not n.startswith("blk.2.fc")]
        tensors = [NewTensor(t.name, t.type_name, t.dims) for t in rest]
        write_gguf(less, keys_of(file), tensors, (file.tensor(t.name) for t in tensors))
    with GGUFFile(made(bundle, less, tmp_path / "out.gguf")) as file:
        assert list(bundles(file)) == [0, 1]
        assert file.metadata[FORMATS_KEY] == [
            "gate:F16 up:F16 down_t:F16",
            "gate:Q8_0 up:Q4_0 down_t:Q4_K",
            "",
        ]
        assert "blk.2.ffn_down_t.weight" in file.tensors


def test_the_gguf_package_reads_bundles(tmp_path):
    """gguf's own reader finds the tensors where ours does."""
    source = replace(SMALL_MODELS["Q8_0"], magic="GGUF").write(tmp_path / "source.gguf")
    out = made(bundle, source, tmp_path / "bundled.gguf")
    peer = gguf.GGUFReader(out)
    assert peer.alignment == PAGE
    with GGUFFile(out) as file:
        assert peer.fields[FORMATS_KEY].contents() == file.metadata[FORMATS_KEY]
        assert [t.name for t in peer.tensors] == list(file.tensors)
        for tensor in peer.tensors:
            assert tensor.data.tobytes() == file.tensor(tensor.name).tobytes()
            assert tensor.data_offset == file.tensors[tensor.name].offset


SMALL = Sparse()
Write = Callable[..., None]
both_ways = pytest.mark.parametrize("write", [bundle, unbundle])


@pytest.fixture
def sources(tmp_path):
    """A file for either way, in a folder of its own."""
    folder = tmp_path / "sources"
    folder.mkdir()
    return direction(SMALL, folder)


def direction(sizes: Sparse, folder: Path) -> dict[Write, Path]:
    plain, bundled = sizes.write(folder / "plain.gguf"), folder / "bundled.gguf"
    with GGUFFile(plain) as file:
        bundle(file, bundled)
    return {bundle: plain, unbundle: bundled}


def files_left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_command_bundles_and_unbundles(inside, tmp_path):
    """A line for each kind of bundle is printed; the restored file equals the first one."""
    plain, out, back = (tmp_path / name for name in ("plain.gguf", "out.gguf", "back.gguf"))
    Sparse(hidden=256, ffn=40, rows=(("Q8_0", "Q8_0", "Q8_0"), ("Q4_K", "Q4_K", "Q6_K"))).write(
        plain
    )
    code, told, _ = inside("bundle", plain, out)
    assert code == 0
    first, second = (line.split() for line in told.splitlines() if "gate:" in line)
    assert " ".join(first) == "gate:Q8_0 up:Q8_0 down_t:Q8_0 1 40 816 1,536"
    assert " ".join(second) == "gate:Q4_K up:Q4_K down_t:Q6_K 2 40 498 512"
    assert told.splitlines()[-1] == f"{out}: {out.stat().st_size:,} bytes, 30 tensors"
    code, told, _ = inside("bundle", "--undo", out, back)
    assert (code, told) == (0, f"{back}: {back.stat().st_size:,} bytes, 36 tensors\n")
    with GGUFFile(plain) as before, GGUFFile(back) as after:
        for name in before.tensors:
            assert before.tensor(name).tobytes() == after.tensor(name).tobytes()


def test_the_command_prints_json(inside, tmp_path):
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
    # as of any file whose gate, up and down_t follow one another
    assert back.read_bytes() == resolve("story-relu").read_bytes()


def test_inspect_lists_bundles(inside, sources):
    """Parts are listed below their bundle, padding is no weight, and a note names errors."""
    plain, out = sources.values()
    code, table, _ = inside("inspect", out)
    assert code == 0
    rows = [" ".join(line.split()) for line in table.splitlines()]
    at = next(i for i, row in enumerate(rows) if row.startswith("blk.1.ffn_bundle.weight I8"))
    assert rows[at + 2] == "up F16 600 x 32 38,400 + 64"
    whole = inside("inspect", plain)[1].splitlines()[-1]
    weights = whole.partition("): ")[2].partition(" weights")[0]
    assert f"3 bundles): {weights} weights" in table.splitlines()[-1]
    described = json.loads(inside("inspect", out, "--json")[1])
    assert [row["block"] for row in described["bundles"]] == [0, 1, 2]
    corrupted = out.with_name("corrupted.gguf")
    inside("inspect", out, "--remove", "assay.bundle.formats", "-o", corrupted)
    code, table, note = inside("inspect", corrupted)
    assert (code, note.count("\n")) == (0, 1)
    assert "note: " in note
    assert "key assay.bundle.formats, which says what bundles hold, is missing" in note
    assert "3 I8" in table.splitlines()[-1]


@both_ways
@changing
def test_a_source_modified_while_it_is_read_is_refused(write, change, message, sources, tmp_path):
    calls: list[int] = []

    def progress(done: int, _: int) -> None:
        if not calls:
            change(sources[write])
        calls.append(done)

    with GGUFFile(sources[write]) as file, pytest.raises(GGUFError, match=message):
        write(file, tmp_path / "out.gguf", progress)
    assert files_left(tmp_path) == ["sources"]


def test_bundling_takes_little_memory(tmp_path):
    """48 MB of neurons need a few pieces: the one that is written, and its sources."""
    large = Sparse(blocks=1, hidden=1024, ffn=8192)
    with_bundles = direction(large, tmp_path)
    for write, source in with_bundles.items():
        with GGUFFile(source) as file:
            tracemalloc.start()
            write(file, tmp_path / "out.gguf")
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < 3 * PIECE < (tmp_path / "out.gguf").stat().st_size / 3
