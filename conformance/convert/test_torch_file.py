"""PyTorch's checkpoint files are read without PyTorch, and no code in them runs."""

import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from conformance.support.models import torch_archive
from conformance.support.refusals import refusal
from engine.torch_file import StoredTensor, TorchFileError, load
from reference.formats import FORMATS
from reference.op import Array

DTYPES = ("float32", "float16", "float64", "int64", "int32", "uint16")
MATRIX = np.arange(12, dtype=np.float32).reshape(3, 4)


def expected(array: Array) -> Array:
    """The values as `StoredTensor.whole` gives them: 16-bit words are bfloat16."""
    if array.dtype == np.uint16:
        stored = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return FORMATS["BF16"].dequantise(stored).reshape(array.shape)
    return array.astype(np.float32) if array.dtype == np.float16 else array


@given(
    st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3), st.booleans(), st.integers(0)
)
def test_tensors_of_any_type_and_layout_are_read(tmp_path_factory, dtype, dims, turned, seed):
    """Tensors of any type, shape and strides are read whole and by rows."""
    path = tmp_path_factory.getbasetemp() / "tensor.pt"
    values = np.random.default_rng(seed).integers(0, 1000, dims).astype(dtype)
    array = values.T if turned else values
    torch_archive.save(array, path)
    tensor = load(path)
    assert (tensor.file, tensor.dims) == (path, array.shape)
    want = expected(array)
    assert_array_equal(tensor.read(), want, strict=True)
    assert tensor.read().flags.c_contiguous
    if tensor.dtype in FORMATS and array.ndim and len(array):
        first, last = sorted((seed % len(array), len(array) - 1))
        assert_array_equal(tensor.rows(first, last), want[first:last])


def test_nested_tables_and_other_objects_are_read(tmp_path):
    """Nested tables, lists, texts and numbers next to tensors are restored."""
    path = tmp_path / "state.pt"
    state = OrderedDict(a=MATRIX, b={"c": [1, 2.5, "d", None, True, MATRIX[0]]})
    torch_archive.save(state, path)
    found = load(path)
    assert list(found) == ["a", "b"]
    assert_array_equal(found["a"].read(), MATRIX)
    *others, row = found["b"]["c"]
    assert others == [1, 2.5, "d", None, True]
    assert isinstance(row, StoredTensor)
    assert_array_equal(row.read(), MATRIX[0])


def test_files_saved_by_pytorch_are_read(tmp_path):
    """Modules' state dicts, parameters and views are read, and PyTorch reads our stand-in's."""
    torch = pytest.importorskip("torch")
    path = tmp_path / "saved.pt"
    wide = torch.arange(60.0).reshape(6, 10)
    module = torch.nn.Linear(3, 4)
    things = {
        "part": wide[1:5, 2:9:3],
        "column": wide[:, 3],
        "turned": wide.T,
        "spread": torch.ones(1).expand(3, 2),
        "parameter": torch.nn.Parameter(torch.ones(2, 3)),
        "number": torch.tensor(2.5),
        **{str(t): torch.arange(5).to(t) for t in (torch.int8, torch.uint8, torch.int16)},
        **{str(t): torch.arange(5).to(t) for t in (torch.float16, torch.float64, torch.bool)},
    }
    torch.save({**things, "bfloat16": wide.to(torch.bfloat16)}, path)
    found = load(path)
    for name, thing in things.items():
        assert_array_equal(found[name].read(), thing.detach().numpy(), name)
    assert_array_equal(found["bfloat16"].read(), wide.numpy())
    torch.save(module.state_dict(), path)
    assert_array_equal(load(path)["weight"].read(), module.weight.detach().numpy())
    torch_archive.save({"a": MATRIX, "b": [MATRIX.T]}, path)
    theirs = torch.load(path)
    assert_array_equal(theirs["a"].numpy(), MATRIX)
    assert_array_equal(theirs["b"][0].numpy(), MATRIX.T)
    torch.save(MATRIX, path, _use_new_zipfile_serialization=False)
    with pytest.raises(TorchFileError, match=r"files of versions before 1\.6 must be saved"):
        load(path)


class MaliciousPickle:
    """Writes a file when it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.place,)


def test_no_pickled_code_is_run(tmp_path):
    torch_archive.save({"a": MATRIX, "b": MaliciousPickle(tmp_path / "run")}, tmp_path / "rogue.pt")
    with pytest.raises(
        TorchFileError, match=r"it holds .*, which is neither a tensor nor a container"
    ):
        load(tmp_path / "rogue.pt")
    assert not (tmp_path / "run").exists()


def altered(path: Path, name: str = "", data: bytes | None = None, compress: int = 0) -> None:
    """The file with another member of this name, or without."""
    torch_archive.save({"a": MATRIX}, path)
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    if data is None:
        members.pop(name, None)
    else:
        members[name] = data
    with zipfile.ZipFile(path, "w", compress) as archive:
        for member, content in members.items():
            archive.writestr(member, content)


def with_sizes(path: Path, old: bytes, new: bytes) -> None:
    """The file with another tensor than MATRIX in its table."""
    torch_archive.save({"a": MATRIX}, path)
    with zipfile.ZipFile(path) as archive:
        table = archive.read("archive/data.pkl")
    assert table.count(old) == 1
    altered(path, "archive/data.pkl", table.replace(old, new))


TABLE, STORAGE = "archive/data.pkl", "archive/data/0"
COUNT, DIMS = b"K\x0ct", b"K\x03K\x04\x86"  # opcodes of a one-byte number, and of a pair
FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no file": (Path.exists, "cannot be read: no such file or directory"),
    "a folder": (Path.mkdir, "cannot be read: is a directory"),
    "empty": (lambda p: p.write_bytes(b""), "not a complete PyTorch file"),
    "text": (lambda p: p.write_text("weights"), "not a complete PyTorch file"),
    "a bare pickle": (lambda p: p.write_bytes(pickle.dumps({})), "files of versions before 1.6"),
    "another zip": (partial(altered, name=TABLE), "a zip archive, but not a PyTorch file"),
    "compressed": (partial(altered, compress=zipfile.ZIP_DEFLATED), "its members are compressed"),
    "big-endian": (
        partial(altered, name="archive/byteorder", data=b"big"), "its numbers are big-endian"
    ),
    "no storage": (partial(altered, name=STORAGE), "storage 0 is missing"),
    "a short storage": (
        partial(altered, name=STORAGE, data=bytes(47)), "has 47 bytes, not 12 numbers in F32"
    ),
    "a table that is none": (
        partial(altered, name=TABLE, data=b"\x80\x02garbage"), "the table of its tensors cannot"
    ),
    "a table cut short": (
        partial(altered, name=TABLE, data=b"\x80\x02}q\x00"), "the table of its tensors cannot"
    ),
    "more numbers": (partial(with_sizes, old=COUNT, new=b"K\x0dt"), "has 48 bytes, not 13 numbers"),
    "more elements": (
        partial(with_sizes, old=DIMS, new=b"K\x04K\x04\x86"), "has more elements than its storage"
    ),
    "negative sizes": (
        partial(with_sizes, old=DIMS, new=b"J\xff\xff\xff\xffK\x04\x86"), "sizes are invalid"
    ),
    "one size": (partial(with_sizes, old=DIMS, new=b"K\x0c\x85"), "a tensor's sizes are invalid"),
}  # fmt: skip


@pytest.mark.parametrize(("corrupt", "line"), FAULTS.values(), ids=FAULTS)
def test_unsupported_files_are_refused(tmp_path, corrupt, line):
    """One line names the file."""
    path = tmp_path / "bad.pt"
    corrupt(path)
    assert line in refusal(TorchFileError, path, load, path)


@given(st.data())
def test_damaged_files_are_refused_or_whole(tmp_path_factory, data):
    """With changed bytes or a missing end, the file is refused, or its tensors are complete."""
    path = tmp_path_factory.getbasetemp() / "damaged.pt"
    torch_archive.save({"a": MATRIX, "b": MATRIX.astype(np.float16)}, path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(len(content) // 2, len(content)))])
    with suppress(TorchFileError):
        for tensor in load(path).values():
            assert tensor.read().shape == tensor.dims


def test_truncation_while_reading_is_an_error(tmp_path):
    path = tmp_path / "state.pt"
    torch_archive.save(MATRIX, path)
    tensor = load(path)
    path.write_bytes(path.read_bytes()[: tensor.begin + 40])
    assert_array_equal(tensor.rows(0, 2), MATRIX[:2])
    with pytest.raises(TorchFileError, match="truncated while being read"):
        tensor.rows(1, 3)
