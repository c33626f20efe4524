"""Writing GGUF files: readers find the contents, and errors leave no file."""

import json
from collections.abc import Iterator
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.embedded import resolve
from engine.gguf import edit as gguf_edit
from engine.gguf import writer as gw
from engine.gguf.cursor import NUMBERS, GGUFError, ValueType
from engine.gguf.file import GGUFFile

ARRAY, STRING = gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.STRING
TENSORS = (
    gw.NewTensor("a", "F32", (3, 5)),
    gw.NewTensor("empty", "F16", (0, 4)),
    gw.NewTensor("b", "Q4_0", (2, 3, 64)),
    gw.NewTensor("c", "F16", (7,)),
)


def pieces(size: int) -> Iterator[gw.Bytes]:
    """Each tensor's bytes in pieces of this size."""
    rng = np.random.default_rng(1)
    for tensor in TENSORS:
        data = rng.integers(0, 256, tensor.n_bytes, np.uint8)
        yield from (data[i : i + size] for i in range(0, len(data), size))


def texts() -> st.SearchStrategy[str]:
    """Texts, including those decoded from invalid UTF-8."""
    return st.binary(max_size=9).map(lambda data: data.decode("utf-8", "surrogateescape"))


def values(kind: gguf.GGUFValueType) -> st.SearchStrategy[Any]:
    if kind == STRING:
        return texts()
    if kind == gguf.GGUFValueType.BOOL:
        return st.booleans()
    dtype = NUMBERS[kind]
    if dtype.kind == "f":
        return st.floats(width=8 * dtype.itemsize, allow_nan=False)
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return st.integers(int(low), int(high))


def typed_values() -> st.SearchStrategy[tuple[ValueType, Any]]:
    def of(kind: gguf.GGUFValueType) -> st.SearchStrategy[tuple[ValueType, Any]]:
        alone = values(kind).map(lambda value: (ValueType(kind, None), value))
        many = st.lists(values(kind), max_size=4).map(lambda v: (ValueType(ARRAY, kind), v))
        return alone | many

    return st.sampled_from([STRING, *NUMBERS]).flatmap(of)


@given(
    st.dictionaries(st.text(min_size=1, max_size=9), typed_values(), max_size=6),
    st.sampled_from([1, 7, 1 << 20]),
    st.sampled_from([1, 32, 256]),
)
def test_round_trip(tmp_path_factory, keys, size, alignment):
    """Keys of every type, empty arrays, invalid UTF-8 and all bytes of tensors are read back."""
    out = tmp_path_factory.getbasetemp() / "written.gguf"
    keys = {**keys, "general.alignment": gw.u32(alignment)}
    gw.write_gguf(out, keys, TENSORS, pieces(size))
    with GGUFFile(out) as file:
        assert gguf_edit.keys_of(file) == keys
        assert [(t.name, t.type_name, t.dims) for t in file.tensors.values()] == [
            (t.name, t.type_name, t.dims) for t in TENSORS
        ]
        stored = b"".join(file.tensor(t.name).tobytes() for t in TENSORS)
        assert stored == b"".join(p.tobytes() for p in pieces(1 << 20))
        assert all(t.offset % alignment == 0 for t in file.tensors.values())


def test_the_gguf_package_reads_it(tmp_path):
    """The `gguf` package's reader finds the same."""
    out = tmp_path / "out.gguf"
    some = [t for t in TENSORS if t.n_bytes]
    gw.write_gguf(out, {"a.b": gw.texts(["x", "é"]), "n": gw.f32(0.5)}, some, pieces(64))
    peer = gguf.GGUFReader(out)
    assert peer.fields["a.b"].contents() == ["x", "é"]
    assert peer.fields["n"].contents() == 0.5
    assert [t.name for t in peer.tensors] == ["a", "b", "c"]
    data = b"".join(t.data.tobytes() for t in peer.tensors)
    assert data == b"".join(p.tobytes() for p in pieces(64))


@pytest.mark.parametrize("count", [0, 1, 10**6])
def test_pieces_must_have_the_tensors_size(tmp_path, count):
    """Too few or too many bytes leave no file."""
    wrong = [*pieces(16), np.zeros(1, np.uint8)] if count == 10**6 else list(pieces(16))[:count]
    with pytest.raises(ValueError, match=r"pieces|more bytes"):
        gw.write_gguf(tmp_path / "out.gguf", {}, TENSORS, wrong)
    assert not list(tmp_path.iterdir())


def test_inspect_prints_everything(inside):
    """`assay inspect` prints everything as JSON, and the same as tables."""
    said = json.loads(inside("inspect", "story", "--json")[1])
    with GGUFFile(resolve("story")) as file:
        assert said["metadata"] == file.metadata
        assert [tuple(t["dims"]) for t in said["tensors"]] == [
            t.dims for t in file.tensors.values()
        ]
    _, table, _ = inside("inspect", "story")
    assert "blk.0.attn_q.weight" in table
    assert "llama.context_length" in table


def test_inspect_sets_and_removes_keys(inside, tmp_path):
    """Keys are set, added and removed; other keys and every tensor's bytes stay."""
    out = tmp_path / "out.gguf"
    settings = ("tokenizer.ggml.bos_token_id=7", "general.name=x=y", "my.own:[float32]=[1, 2.5]")
    options = [word for setting in settings for word in ("--set", setting)]
    done = inside("inspect", "story", *options, "--remove", "general.license", "-o", out)
    assert done == (0, f"{out}: 25 keys, 48 tensors\n", "")
    with GGUFFile(resolve("story")) as before, GGUFFile(out) as after:
        wanted = gguf_edit.keys_of(before)
        del wanted["general.license"]
        wanted["tokenizer.ggml.bos_token_id"] = gw.u32(7)
        wanted["general.name"] = gw.text("x=y")
        wanted["my.own"] = gw.f32s([1.0, 2.5])
        assert gguf_edit.keys_of(after) == wanted
        assert list(after.tensors) == list(before.tensors)
        for name in before.tensors:
            assert np.array_equal(before.tensor(name), after.tensor(name)), name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "tokenizer.ggml.bos_token=1"], "perhaps 'tokenizer.ggml.bos_token_id'?"),
        (["--set", "general.file_type=-1"], "'general.file_type': the value is no uint32"),
        (["--set", "general.file_type=abc"], "'general.file_type': the value is no uint32"),
        (["--set", "general.file_type=true"], "'general.file_type': the value is no uint32"),
        (["--set", "x:uint8=256"], "'x': the value is no uint8"),
        (["--set", "x:thing=1"], "there is no type 'thing'"),
        (["--set", "x:[array]=1"], "there is no type"),
        (["--set", "x:[uint8]=1"], "is no JSON array"),
        (["--set", "x:[string]=[1]"], "1 is no text"),
        (["--set", "nothing"], "want KEY=VALUE"),
        (["--remove", "nothing"], "there is no key 'nothing'"),
        (["--set", "general.alignment:uint32=48"], "a power of two"),
    ],
)  # fmt: skip
def test_inspect_refuses_invalid_changes(tmp_path, arguments, message):
    options: dict[str, list[str]] = {"--set": [], "--remove": []}
    options[arguments[0]].append(arguments[1])
    with GGUFFile(resolve("story")) as file:
        keys = gguf_edit.keys_of(file)
    with pytest.raises(GGUFError) as error:
        gguf_edit.edited(keys, options["--set"], options["--remove"])
    assert message in str(error.value)
    assert "\n" not in str(error.value)
