"""Activation statistics: both kinds of files, and invalid ones."""

import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.support.models import torch_archive
from conformance.support.refusals import refusal
from engine.atomic_write import OutputError
from engine.placement.statistics import Activations, StatisticsError, read, write


def random(blocks: int = 12, ffn: int = 40, tokens: int = 1000) -> Activations:
    rng = np.random.default_rng(blocks)
    counts = tuple(rng.integers(0, tokens + 1, ffn) for _ in range(blocks))
    return Activations(counts, tokens, "abc")


def same(a: Activations, b: Activations) -> bool:
    return len(a.counts) == len(b.counts) and all(map(np.array_equal, a.counts, b.counts))


@given(st.integers(1, 12), st.integers(1, 40), st.integers(0, 2**40))
def test_npz_round_trip(tmp_path_factory, blocks, ffn, tokens):
    """Statistics are read back completely, with blocks in numeric order ("10" after "2")."""
    path = tmp_path_factory.getbasetemp() / "activations.npz"
    before = random(blocks, ffn, tokens)
    write(path, before)
    after = read(path)
    assert same(before, after)
    assert (after.tokens, after.model) == (tokens, "abc")
    assert all(counts.dtype == np.int64 for counts in after.counts)
    assert after.digest == before.digest


def test_folder_round_trip(tmp_path):
    """With torch, folders of integers or floats are read back; older files are removed."""
    torch = pytest.importorskip("torch")
    before, folder = random(), tmp_path / "activation"
    write(folder, random(14))
    write(folder, before)
    assert sorted(p.name for p in folder.iterdir()) == sorted(
        f"activation_{i}.pt" for i in range(12)
    )
    after = read(folder)
    assert same(before, after)
    assert (after.tokens, after.model) == (0, "")
    for i, counts in enumerate(before.counts):
        torch.save(torch.from_numpy(counts).to(torch.float32), folder / f"activation_{i}.pt")
    assert same(before, read(folder))
    assert [p.name for p in tmp_path.iterdir()] == ["activation"]


@pytest.mark.parametrize("dtype", ["int64", "int32", "float32", "float16"])
def test_folder_read_without_torch(tmp_path, dtype):
    """Folders of any numeric type are read without torch."""
    before = random(tokens=2000)
    for i, counts in enumerate(before.counts):
        torch_archive.save(counts.astype(dtype), tmp_path / f"activation_{i}.pt")
    assert same(before, read(tmp_path))


REFUSED: dict[str, tuple[object, str]] = {
    "shares": (np.full(4, 0.5, np.float32), "neuron 0 has 0.5: want counts, not shares"),
    "two dimensions": (np.zeros((2, 2)), "want counts in one dimension, this is 2 x 2 of float64"),
    "a number": (np.zeros(()), "want counts in one dimension, this is one of float64"),
    "a table": ({"a": np.zeros(4)}, "this is no tensor of counts"),
    "much": (np.broadcast_to(np.zeros(1), (2**25,)), "it has more than 16777216 elements"),
}


@pytest.mark.parametrize(("thing", "words"), REFUSED.values(), ids=REFUSED)
def test_folder_refused(tmp_path, thing, words):
    torch_archive.save(thing, tmp_path / "activation_0.pt")
    with pytest.raises(StatisticsError) as error:
        read(tmp_path)
    assert str(error.value) == f"{tmp_path / 'activation_0.pt'}: {words}"


def test_without_torch(tmp_path, monkeypatch):
    """Writing a folder gives one line of advice; .npz does not need torch."""
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(StatisticsError, match=r"need torch: install torch, or write a \.npz"):
        write(tmp_path / "new", random())
    write(tmp_path / "a.npz", random())
    assert same(read(tmp_path / "a.npz"), random())


def npz(**arrays: object) -> Callable[[Path], None]:
    """Statistics of one block of two neurons, with these changes."""
    have = {"blk.0.counts": np.array([1, 2]), "tokens": np.array(9), "model": np.array("")}
    have |= {name.replace("__", "."): np.array(value) for name, value in arrays.items()}
    return lambda path: np.savez(path, **{k: v for k, v in have.items() if v.dtype != object})


def cut(path: Path) -> None:
    write(path, random())
    path.write_bytes(path.read_bytes()[:-200])


def claims_much(path: Path) -> None:
    """A header of 2^50 elements without data."""
    npz()(path)
    with zipfile.ZipFile(path, "a") as archive:
        header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (1125899906842624,), }\n"
        data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
        archive.writestr("blk.1.counts.npy", data)


WRONG = {
    "text": (lambda path: path.write_text("counts"), "neither a folder"),
    "nothing": (lambda path: path.write_bytes(b""), "neither a folder"),
    "cut short": (cut, "cut short"),
    "much": (claims_much, "blk.1.counts is no array"),
    "no tokens": (npz(tokens=None), "there is no array 'tokens'"),
    "no blocks": (npz(blk__0__counts=None), "there is no array 'blk.0.counts'"),
    "gap": (npz(blk__2__counts=[1, 2]), "block 1 is missing"),
    "twice": (npz(blk__00__counts=[1, 2]), "is there twice"),
    "negative": (npz(blk__0__counts=[1, -2]), "neuron 1 has -2, which is no count"),
    "nan": (npz(blk__0__counts=[1, np.nan]), "neuron 1 has nan, which is no count"),
    "shares": (npz(blk__0__counts=[1, 0.5]), "neuron 1 has 0.5: want counts, not shares"),
    "too many": (npz(blk__0__counts=[1, 2**41]), "which is no count"),
    "matrix": (npz(blk__0__counts=[[1, 2]]), "want counts in one dimension, this is 1 x 2"),
    "text counts": (npz(blk__0__counts=["a"]), "want counts in one dimension"),
    "more than tokens": (npz(tokens=1), "blk.0.counts: a neuron was active on more than all"),
    "tokens": (npz(tokens=[1]), "tokens is no number"),
    "model": (npz(model=1), "model is no text"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "words"), WRONG.values(), ids=WRONG.keys())
def test_npz_refused(tmp_path, make, words):
    """One line that names the file."""
    path = tmp_path / "activations.npz"
    make(path)
    assert words in refusal(StatisticsError, path, read, path)


def test_missing_and_other_files_are_refused(tmp_path):
    with pytest.raises(StatisticsError, match=r"none\.npz: cannot be read: no such file"):
        read(tmp_path / "none.npz")
    with pytest.raises(OutputError, match="there is no folder"):
        write(tmp_path / "none" / "a.npz", random())
    with pytest.raises(StatisticsError, match=r"there is no activation_0\.pt"):
        read(tmp_path)
    (tmp_path / "activation_0.pt").write_text("counts")
    with pytest.raises(StatisticsError, match=r"activation_0\.pt: not a complete PyTorch file"):
        read(tmp_path)
