"""Bundles of neurons: where their bytes are, that they come back, and files whose bundles lie."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.support.small_families import SmallFalcon, SmallOPT, sparse
from conformance.support.sparse_files import MIXED, SMALL_MODELS, SmallSparse, made
from engine.embedded import resolve
from engine.gguf_edit import keys_of
from engine.gguf_file import ALIGNMENT, GGUFFile
from engine.gguf_writer import NewTensor, u32, write_gguf
from engine.offload import bundling
from engine.offload.bundle import (
    FORMATS_KEY,
    PAGE,
    PARTS,
    SECTOR,
    bundles,
    stride_of,
)
from engine.offload.bundling import bundle, unbundle
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
def source(tmp_path: Path) -> Path:
    return MIXED.write(tmp_path / "source.gguf")


def sources_of(file: GGUFFile, block: int) -> dict[str, Array]:
    """The stored rows of a block, by part."""
    names = {part: f"blk.{block}.ffn_{part}.weight" for part in PARTS}
    return {part: file.tensor(name) for part, name in names.items() if name in file.tensors}


# What is where


@pytest.mark.parametrize("piece", [1, 5000, bundling.PIECE])
@pytest.mark.parametrize("name", MODELS)
def test_rows_are_side_by_side_and_come_back(
    name: str, piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the formats and the pieces, a row is gate, up and down_t of its neuron, then zeros;
    all else is as it was, and undone the whole is."""
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


def test_the_embedded_model_comes_back_byte_for_byte(tmp_path: Path) -> None:
    """As any file does whose gate, up and down_t follow one another."""
    out = made(bundle, resolve("story-relu"), tmp_path / "bundled.gguf")
    back = made(unbundle, out, tmp_path / "back.gguf")
    assert back.read_bytes() == resolve("story-relu").read_bytes()


@pytest.mark.parametrize("alignment", [1, 64, 1 << 16])
def test_an_alignment_of_its_own_comes_back(alignment: int, source: Path, tmp_path: Path) -> None:
    """One that is larger stays meanwhile."""
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


def test_only_blocks_with_predictors(source: Path, tmp_path: Path) -> None:
    """The last of three blocks has none, and an empty text."""
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


def test_the_package_reads_it(tmp_path: Path) -> None:
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


@given(st.integers(1, 1 << 40))
def test_strides(n_bytes: int) -> None:
    """The least odd number of sectors that holds so many bytes."""
    sectors, rest = divmod(stride_of(n_bytes), SECTOR)
    assert (rest, sectors % 2) == (0, 1)
    assert (sectors - 2) * SECTOR < n_bytes <= sectors * SECTOR
