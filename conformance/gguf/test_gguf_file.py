"""Reading GGUF files: contents of good ones, errors for bad ones, and no harm by any."""

import math
import os
import random
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as TensorType
from gguf import GGUFValueType as Type
from hypothesis import given
from hypothesis import strategies as st

from conformance.support.models.small_models import written
from conformance.support.refusals import refusal
from conformance.support.tokenizer.vocabularies import real_vocabulary
from engine.gguf.file import GGUFError, GGUFFile, TensorInfo, ValueType

MUTANTS = int(os.environ.get("ASSAY_FUZZ", "2000"))

PACKING = {
    Type.UINT8: "<B", Type.INT8: "<b", Type.UINT16: "<H", Type.INT16: "<h", Type.UINT32: "<I",
    Type.INT32: "<i", Type.FLOAT32: "<f", Type.BOOL: "<B", Type.UINT64: "<Q", Type.INT64: "<q",
    Type.FLOAT64: "<d",
}  # fmt: skip
VALUES: dict[Type, list[Any]] = {
    Type.UINT8: [0, 255], Type.INT8: [-128, 127], Type.UINT16: [0, 2**16 - 1],
    Type.INT16: [-(2**15), 2**15 - 1], Type.UINT32: [0, 2**32 - 1],
    Type.INT32: [-(2**31), 2**31 - 1], Type.FLOAT32: [-0.5, math.inf], Type.BOOL: [True, False],
    Type.STRING: ["", "▁été \n"], Type.UINT64: [0, 2**64 - 1], Type.INT64: [-(2**63), 2**63 - 1],
    Type.FLOAT64: [0.1, -1e300],
}  # fmt: skip
WEIGHTS = {
    "F32": (3, 5), "F16": (2, 3, 4), "BF16": (7,), "Q4_0": (3, 64), "Q8_0": (2, 2, 32),
    "Q4_K": (2, 256), "I32": (2, 1, 1, 3),
}  # fmt: skip


# A file, written by hand so that it can be wrong.


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def scalar(kind: Type, value: Any) -> bytes:
    return text(value) if kind == Type.STRING else struct.pack(PACKING[kind], value)


def key(name: str | bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def array(kind: int, count: int, elements: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + elements


def tensor(
    name: str | bytes = "w", ne: tuple[int, ...] = (8,), kind: int = TensorType.F32, offset: int = 0
) -> bytes:
    """The entry of a tensor: `ne` is ggml's, the contiguous dimension first."""
    dims = struct.pack(f"<I{len(ne)}Q", len(ne), *ne)
    return text(name) + dims + struct.pack("<IQ", kind, offset)


def build(
    keys: tuple[bytes, ...] = (),
    tensors: tuple[bytes, ...] = (),
    data: bytes = bytes(32),
    magic: bytes = b"GGUF",
    version: int = 3,
) -> bytes:
    start = magic + struct.pack("<IQQ", version, len(tensors), len(keys))
    header = start + b"".join(keys) + b"".join(tensors)
    return header + bytes(-len(header) % 32) + data if tensors else header


def of_key(kind: int, value: bytes, name: str = "k") -> bytes:
    """A file with one key."""
    return build((key(name, kind, value),))


def of_tensor(*given: Any, **more: Any) -> bytes:
    """A file with one tensor."""
    return build(tensors=(tensor(*given, **more),))


@pytest.fixture(name="write")
def _write(tmp_path):
    def write(data: bytes) -> Path:
        path = tmp_path / "model.gguf"
        path.unlink(missing_ok=True)  # ext4 makes whoever rewrites a file wait for the disk
        path.write_bytes(data)
        return path

    return write


def refused(path: Path) -> str:
    """The error line for a file, without the path that it begins with."""
    return refusal(GGUFError, path, GGUFFile, path)


def write_with_package(path: Path) -> None:
    """Every value type, alone and in an array, and tensors of several types."""
    rng = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "llama")
    for kind, values in VALUES.items():
        writer.add_key_value(f"one.{kind.name}", values[1], kind)
        writer.add_key_value(f"many.{kind.name}", values, Type.ARRAY, kind)
    writer.add_uint32("general.alignment", 64)
    writer.data_alignment = 64
    for type_name, dims in WEIGHTS.items():
        kind = TensorType[type_name]
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        shape = (*dims[:-1], dims[-1] // block * block_bytes)
        stored = rng.integers(0, 256, shape, np.uint8)
        writer.add_tensor(f"a.{type_name}", stored, raw_dtype=kind)
    written(writer, path)


def assert_same_as_package(file: GGUFFile) -> None:
    peer = gguf.GGUFReader(file.path)
    said = {name: field for name, field in peer.fields.items() if not name.startswith("GGUF.")}
    assert list(file.metadata) == list(said)
    for name, field in said.items():
        value = file.metadata[name]
        assert value == field.contents(), name
        assert file.value_types[name] == ValueType(*[*field.types, None][:2]), name
        first = value[0] if isinstance(value, list) else value
        assert type(first) in (str, int, float, bool), name
    assert list(file.tensors) == [tensor.name for tensor in peer.tensors]
    for theirs in peer.tensors:
        ours = file.tensors[theirs.name]
        assert ours.type_name == theirs.tensor_type.name
        assert ours.dims == tuple(theirs.shape.tolist()[::-1])
        assert (ours.offset, ours.n_bytes) == (theirs.data_offset, theirs.n_bytes)
        view = file.tensor(theirs.name)
        assert view.shape == (*ours.dims[:-1], ours.row_bytes)
        assert view.tobytes() == theirs.data.tobytes()


def test_values_and_tensors_equal_the_gguf_packages(tmp_path):
    """Every value type and tensor reads as with the package that defines the format."""
    path = tmp_path / "model.gguf"
    write_with_package(path)
    with GGUFFile(path) as file:
        assert_same_as_package(file)
        assert len(file.tensors) == len(WEIGHTS)
        assert (file.path, file.size) == (path, path.stat().st_size)


@pytest.mark.parametrize("name", ["llama-spm", "phi-3"])
def test_real_vocabularies_equal_the_gguf_packages(name):
    """A real vocabulary reads as with the `gguf` package."""
    with GGUFFile(real_vocabulary(name)) as file:
        assert_same_as_package(file)


@pytest.mark.parametrize("magic", ["GGUF", "PWRI"])
@pytest.mark.parametrize("version", [2, 3])
def test_both_versions_and_magics_are_read(write, version, magic):
    """Versions 2 and 3, dense and sparse, have one layout, and the file says which it is."""
    keys = (key("a", Type.UINT8, b"\7"),)
    content = build(keys, (tensor(),), bytes(range(32)), magic.encode(), version)
    with GGUFFile(write(content)) as file:
        assert (file.magic, file.version, file.metadata) == (magic, version, {"a": 7})
        assert file.tensors == {"w": TensorInfo("w", "F32", (8,), len(content) - 32, 32)}
        assert file.tensor("w").tolist() == list(range(32))


@given(st.binary(max_size=30))
def test_invalid_utf8_is_preserved(tmp_path_factory, raw):
    """A token of any bytes is returned unchanged."""
    path = tmp_path_factory.getbasetemp() / "token.gguf"
    path.write_bytes(build((key("tokens", Type.ARRAY, array(Type.STRING, 2, text(raw) * 2)),)))
    with GGUFFile(path) as file:
        assert [t.encode("utf-8", "surrogateescape") for t in file.metadata["tokens"]] == [raw, raw]


def test_empty_tensors_and_arrays_are_read(write):
    """Zero elements, rows and bytes are legal."""
    keys = tuple(key(f"a{kind}", Type.ARRAY, array(kind, 0)) for kind in VALUES)
    tensors = (tensor(ne=(32, 0), kind=TensorType.Q4_0), tensor("v", (0, 3)))
    with GGUFFile(write(build(keys, tensors, b""))) as file:
        assert set(map(str, file.metadata.values())) == {"[]"}
        assert (file.tensor("w").shape, file.tensor("v").shape) == ((0, 18), (3, 0))
    with GGUFFile(write(build())) as file:
        assert (file.metadata, file.tensors) == ({}, {})


def test_tensors_are_read_only_views(write):
    """A tensor cannot be written to, and what it shows is the file and not a copy of it."""
    path = write(build(tensors=(tensor(),)))
    file = GGUFFile(path)
    view = file.tensor("w")
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    with path.open("r+b") as stored:
        stored.seek(file.tensors["w"].offset)
        stored.write(b"\x2a")
    assert view[0] == 42


def test_closing_releases_the_file(write):
    """After close no tensor is handed out, and those that were stay readable until dropped."""
    path = write(build(tensors=(tensor(),), data=bytes([5] * 32)))
    with GGUFFile(path) as file:
        view = file.tensor("w")
        with pytest.raises(GGUFError, match=r"model\.gguf: there is no tensor 'x'$"):
            file.tensor("x")
    file.close()
    assert view.tolist() == [5] * 32
    with pytest.raises(GGUFError, match=r"model\.gguf: the file was closed$"):
        file.tensor("w")
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert str(path) in maps.read_text()
        del view
        assert str(path) not in maps.read_text()


# Bad files: bytes, and what the line must say beside the file's name.

GOOD = build((key("k", Type.UINT32, b"\1\0\0\0"),), (tensor(),))
ONE_KEY = struct.pack("<4sIQQ", b"GGUF", 3, 0, 1)
ALIGNED = key("general.alignment", Type.UINT32, struct.pack("<I", 64))
FAULTS: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "empty": (b"", ("the file is empty",)),
    "part of a magic": (b"GGU", ("header", "ends within the magic", "byte 0")),
    "unknown magic": (b"\x12345678", ("not a GGUF file", "begins with b'\\x12345'", "byte 0")),
    "zip": (b"PK\x03\x04" + bytes(40), ("not a GGUF file", "looks like a zip archive")),
    "safetensors": (struct.pack("<Q", 60) + b'{"a":', ("looks like a safetensors file",)),
    "pickle": (b"\x80\x02}", ("looks like a Python pickle",)),
    "old ggml": (b"tjgg" + bytes(9), ("looks like a GGJT file",)),
    "web page": (b"<!DOCTYPE html>", ("looks like an HTML",)),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\n", ("looks like a Git LFS pointer",)),
    "no version": (b"GGUF\3\0", ("header", "ends within the version", "2 are left", "byte 4")),
    "version 1": (build(version=1), ("header", "version 1 is not supported", "byte 4")),
    "version 4": (build(version=4), ("version 4 is not supported",)),
    "version 0": (build(version=0), ("version 0 is not supported",)),
    "big-endian": (build(version=3 << 24), ("big-endian version 3 is not supported", "byte 4")),
    "no counts": (GOOD[:12], ("header", "ends within the number of tensors", "byte 8")),
    "no key count": (build()[:20], ("header", "ends within the number of keys", "byte 16")),
    "too many tensors": (struct.pack("<4sIQQ", b"GGUF", 3, 2**63, 0),
        ("header", f"{2**63} tensors", "byte 8")),
    "too many keys": (struct.pack("<4sIQQ", b"GGUF", 3, 0, 2) + bytes(25),
        ("header", "2 keys", "25", "byte 16")),
    "long key": (ONE_KEY + struct.pack("<Q", 2**64 - 1) + bytes(9),
        ("key 0", "ends within the name", f"{2**64 - 1} bytes long", "9 are left", "byte 32")),
    "key not UTF-8": (build((key(b"a\xffb", 0, b"\1"),)),
        ("key 0", "name is not UTF-8", "byte 33")),
    "duplicate key": (build((key("k", 0, b"\1"), key("k", 0, b"\1"))),
        ("key 'k'", "earlier key", "byte 47")),
    "cut in a type": (ONE_KEY + text("abcd") + bytes(2), ("key 'abcd'", "value type", "byte 36")),
    "unknown value type": (of_key(13, b"\1"), ("key 'k'", "no value type 13", "byte 33")),
    "unknown element type": (of_key(Type.ARRAY, array(99, 0)),
        ("key 'k'", "value type 99", "byte 37")),
    "cut in a number": (of_key(Type.UINT64, bytes(7)),
        ("key 'k'", "ends within the value", "byte 37")),
    "cut in a string": (of_key(Type.STRING, text("abc")[:-1]),
        ("key 'k'", "string 0 of 1", "byte 37")),
    "endless string": (of_key(Type.STRING, b"\xff" * 8), ("key 'k'", "string 0 of 1", "byte 37")),
    "cut between strings": (of_key(Type.ARRAY, array(Type.STRING, 2, text("eight..."))),
        ("key 'k'", "string 1 of 2", "byte 65")),
    "endless array": (of_key(Type.ARRAY, array(Type.FLOAT32, 2**62, bytes(8))),
        ("key 'k'", f"{2**62} elements", "8 bytes left", "byte 41")),
    "endless strings": (of_key(Type.ARRAY, array(Type.STRING, 3, bytes(23))),
        ("key 'k'", "3 elements", "23 bytes left", "byte 41")),
    "nested arrays": (of_key(Type.ARRAY, array(Type.ARRAY, 1, array(0, 1, b"\1"))),
        ("key 'k'", "arrays of arrays are not supported", "byte 37")),
    "bool of 2": (of_key(Type.BOOL, b"\2"), ("key 'k'", "0 or 1, not 2", "byte 37")),
    "bool of 255 in an array": (of_key(Type.ARRAY, array(Type.BOOL, 3, b"\0\1\xff")),
        ("key 'k'", "0 or 1, not 255", "byte 51")),
    "alignment of 0": (of_key(Type.UINT32, bytes(4), "general.alignment"),
        ("key 'general.alignment'", "0 is not a power of two")),
    "alignment of 48": (of_key(Type.UINT32, b"0\0\0\0", "general.alignment"),
        ("key 'general.alignment'", "48 is not a power of two")),
    "alignment in words": (of_key(Type.STRING, text("big"), "general.alignment"),
        ("key 'general.alignment'", "must be UINT32, not STRING")),
    "cut in a tensor": (GOOD[:70], ("tensor 'w'", "ends within the offset", "byte 66")),
    "long tensor name": (of_tensor("n" * 65), ("tensor 'nnn", "more than 64 bytes", "byte 24")),
    "tensor name not UTF-8": (of_tensor(b"\xc3"), ("tensor 0", "name is not UTF-8", "byte 32")),
    "duplicate tensor": (build(tensors=(tensor(), tensor())),
        ("tensor 'w'", "earlier tensor has the same name")),
    "no dimensions": (build(tensors=(tensor(ne=()) + bytes(8),)),
        ("tensor 'w'", "0 dimensions", "byte 33")),
    "5 dimensions": (of_tensor(ne=(1,) * 5), ("tensor 'w'", "5 dimensions")),
    "a huge shape": (of_tensor(ne=(2**32, 2**28)),
        ("tensor 'w'", f"{2**28} x {2**32} is 2^60 elements or more", "byte 37")),
    "a huge shape of nothing": (of_tensor(ne=(0, 2**60)), ("tensor 'w'", "2^60 elements or more")),
    "part of a block": (of_tensor(ne=(48,), kind=2),
        ("tensor 'w'", "Q4_0 rows hold multiples of 32 elements, not 48", "byte 37")),
    "unknown tensor type": (of_tensor(kind=4), ("tensor 'w'", "no tensor type 4", "byte 45")),
    "offset between blocks": (build(tensors=(tensor(offset=33),), data=bytes(99)),
        ("tensor 'w'", "offset 33 is not a multiple of 32", "byte 49")),
    "offset against its own alignment": (build((ALIGNED,), (tensor(offset=32),), data=bytes(99)),
        ("offset 32", "multiple of 64")),
    "data cut short": (GOOD[:-1], ("tensor 'w'", "ends within its 32 bytes", "byte 96")),
    "data far away": (of_tensor(offset=2**64 - 32), ("tensor 'w'", f"byte {2**64 + 32}")),
    "overlapping tensors": (
        build(tensors=(tensor("b", offset=32), tensor("a", (9,))), data=bytes(64)),
        ("tensor 'b'", "overlaps tensor 'a'", "byte 128")),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_refused_in_one_line(write, fault):
    """A bad file is refused in one plain line naming the file, the place and the fault."""
    content, words = FAULTS[fault]
    line = refused(write(content))
    for word in words:
        assert word in line


def test_every_truncation_is_refused(tmp_path, write):
    """A file truncated at any byte before the end of its last tensor is refused, in one line."""
    write_with_package(tmp_path / "whole.gguf")
    whole = (tmp_path / "whole.gguf").read_bytes()
    with GGUFFile(tmp_path / "whole.gguf") as file:
        end = max(info.offset + info.n_bytes for info in file.tensors.values())
    for length in range(end):
        refused(write(whole[:length]))
    GGUFFile(write(whole[:end])).close()


def test_missing_files_folders_and_pipes_are_refused(tmp_path):
    """A missing file, a folder and a pipe are refused in one line, without waiting for anyone."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert refused(tmp_path / "none") == "cannot be read: no such file or directory"
    assert refused(tmp_path) == refused(pipe) == "this is not a file"


def test_unreadable_file_is_refused(write):
    """A file without permission to read is refused in one line."""
    path = write(GOOD)
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    assert refused(path) == "cannot be read: permission denied"


def test_names_are_escaped_in_errors(tmp_path):
    """Line breaks and endless names, in a path or in a file, stay within one short line."""
    path = tmp_path / "two\nlines.gguf"
    path.write_bytes(build((key("k\n" + "x" * 9999, Type.BOOL, b"\7"),)))
    with pytest.raises(GGUFError) as error:
        GGUFFile(path)
    line = str(error.value)
    assert line.isprintable()
    assert len(line) < 300 + len(str(path))
    assert "two\\nlines.gguf" in line
    assert "key 'k\\nxxx" in line


def seeds_of_mutants() -> list[bytes]:
    """Small files that reach every branch of the reader."""
    keys = tuple(
        key(f"{kind.name}.{i}", kind, scalar(kind, value))
        for kind, values in VALUES.items()
        for i, value in enumerate(values)
    )
    keys += tuple(
        key(kind.name, Type.ARRAY, array(kind, 2, b"".join(scalar(kind, v) for v in values)))
        for kind, values in VALUES.items()
    )
    three = (tensor(), tensor("q", (32, 2), 2, 64), tensor("h", (2, 3, 1, 1), 1, 128))
    strings = b"".join(text("t" * (i % 5)) for i in range(200))
    return [
        GOOD,
        build((*keys, ALIGNED), three, bytes(140)),
        build((key("tokenizer.ggml.tokens", Type.ARRAY, array(Type.STRING, 200, strings)),)),
        build(tensors=three, data=bytes(140), magic=b"PWRI", version=2),
    ]


def mutant(number: int, seeds: list[bytes]) -> bytes:
    """The same bytes for the same number."""
    rng = random.Random(number)
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(data)) if data else 0
        match rng.choice(("bit", "byte", "cut", "splice", "u32", "u64", "u64", "insert")):
            case "bit" if data:
                data[at] ^= 1 << rng.randrange(8)
            case "byte" if data:
                data[at] = rng.randrange(256)
            case "cut":
                del data[at:]
            case "splice":
                other = rng.choice(seeds)
                start = rng.randrange(len(other))
                data[at : at + rng.randrange(40)] = other[start : start + rng.randrange(40)]
            case "insert":
                data[at:at] = rng.randbytes(rng.randrange(1, 9))
            case "u32":
                data[at : at + 4] = struct.pack("<I", extreme(rng, 32))
            case "u64":
                data[at : at + 8] = struct.pack("<Q", extreme(rng, 64))
            case _:
                data += rng.randbytes(3)
    return bytes(data)


def extreme(rng: random.Random, bits: int) -> int:
    """A number of this many bits: random, small, a power of two, or adjacent to one."""
    near = (1 << rng.randrange(bits)) + rng.randrange(-1, 2)
    return rng.choice((rng.getrandbits(bits), rng.randrange(70), near)) % (1 << bits)


def read_everything(path: Path) -> str | None:
    """Read a file to the last byte of its tensors; returns the error line, or None."""
    try:
        with GGUFFile(path) as file:
            views = [file.tensor(name) for name in file.tensors]
            assert sum(view.nbytes for view in views) <= file.size
            for view in views:
                view.sum(dtype=np.int64)
    except GGUFError as error:
        return str(error)
    return None


@pytest.fixture(name="traced")
def _traced():
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("traced")
def test_corrupted_files_do_no_harm(write):
    """A corrupted file is read or refused in one line, fast, and in memory like its size."""
    seeds = seeds_of_mutants()
    read = 0
    for number in range(MUTANTS):
        data = mutant(number, seeds)
        path = write(data)
        again = f"mutant({number}, seeds_of_mutants())"
        tracemalloc.reset_peak()
        before, started = tracemalloc.get_traced_memory()[0], time.perf_counter()
        try:
            line = read_everything(path)
        except Exception as error:
            error.add_note(again)
            raise
        read += line is None
        assert line is None or (line.isprintable() and line.startswith(f"{path}: ")), again
        assert time.perf_counter() - started < 5, again
        assert tracemalloc.get_traced_memory()[1] - before < 100 * len(data) + 100_000, again
    assert MUTANTS // 20 < read < MUTANTS  # both outcomes were tried
