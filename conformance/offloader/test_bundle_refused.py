"""Models without anything to bundle, and files with invalid bundles: one plain line."""

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.support import refusals
from conformance.support.models.sparse_files import MIXED, made
from engine.embedded import resolve
from engine.gguf.edit import keys_of
from engine.gguf.file import ALIGNMENT, GGUFFile
from engine.gguf.writer import NewTensor, boolean, i32s, text, texts, u32, write_gguf
from engine.offload.bundle import (
    ALIGNMENT_BEFORE,
    FORMATS_KEY,
    PARTS,
    UNGATED,
    BundleError,
    bundles,
)
from engine.offload.bundling import bundle, unbundle
from engine.placement.budget import PlacementError, parts
from engine.quantise import QuantiseError, Recipe, choices


@pytest.fixture
def source(tmp_path):
    return MIXED.write(tmp_path / "source.gguf")


@pytest.fixture
def bundled(source, tmp_path):
    return made(bundle, source, tmp_path / "bundled.gguf")


def refusal(write: Callable[[GGUFFile, Path], object], source: Path) -> str:
    """The error line, which names the file; no file is left."""
    line = refusals.refusal(BundleError, source, made, write, source, source.with_name("refused"))
    assert not list(source.parent.glob("refused*"))
    return line


@pytest.mark.parametrize(
    ("without", "message"),
    [
        ("blk.1.fc2.weight", "tensor blk.1.fc2.weight is missing"),
        ("blk.0.fc1.weight", "tensor blk.0.fc1.weight is missing"),
        ("blk.1.ffn_down_t.weight", "tensor blk.1.ffn_down_t.weight is missing"),
        ("blk.2.ffn_up.weight", "tensor blk.2.ffn_up.weight is missing"),
    ],
)
def test_missing_tensors_are_refused(without, message, tmp_path):
    assert refusal(bundle, MIXED.write(tmp_path / "source.gguf", without)) == message


def test_dense_models_are_refused(tmp_path):
    """The error says how to make predictors, and how to transpose down."""
    dense = tmp_path / "dense.gguf"
    dense.write_bytes(resolve("story").read_bytes())
    assert refusal(bundle, dense).endswith(
        "`assay sparsify` makes predictors for a model with ReLU"
    )
    sizes = {
        "blk.0.fc1": (8, 32),
        "blk.0.fc2": (64, 8),
        "blk.0.ffn_up": (64, 32),
        "blk.0.ffn_down": (32, 64),
    }
    with_dims(sizes, tmp_path / "shaped.gguf")
    assert refusal(bundle, tmp_path / "shaped.gguf") == (
        "tensor blk.0.ffn_down_t.weight is missing: the rows of ffn_down are no neurons'; `assay"
        " sparsify` transposes it"
    )


def with_dims(sizes: Mapping[str, tuple[int, ...]], path: Path) -> None:
    """A file of F32 tensors of these dims."""
    keys = {"general.architecture": text("llama"), "llama.block_count": u32(1)}
    tensors = [NewTensor(f"{name}.weight", "F32", dims) for name, dims in sizes.items()]
    write_gguf(path, keys, tensors, (np.zeros(t.n_bytes, np.uint8) for t in tensors if t.n_bytes))


@pytest.mark.parametrize(
    ("name", "dims", "message"),
    [
        ("ffn_up", (63, 32), "tensor blk.0.ffn_up.weight is [63, 32], not [64, 32] as"),
        ("ffn_down_t", (32, 64), "tensor blk.0.ffn_down_t.weight is [32, 64], not [64, 32] as"),
        ("ffn_up", (2, 32, 32), "tensor blk.0.ffn_up.weight is [2, 32, 32], not [64, 32] as"),
        ("ffn_gate", (64,), "tensor blk.0.ffn_gate.weight is [64], not [64, 32] as"),
        ("fc1", (9, 32), "blk.0: fc1 [9, 32] and fc2 [64, 8] are no predictor"),
        ("fc2", (64,), "blk.0: fc1 [8, 32] and fc2 [64] are no predictor"),
        ("fc2", (0, 8), "blk.0: fc1 [8, 32] and fc2 [0, 8] are no predictor"),
        ("fc1", (8, 0), "blk.0: fc1 [8, 0] and fc2 [64, 8] are no predictor"),
    ],
)
def test_mismatched_shapes_are_refused(name, dims, message, tmp_path):
    wide = dict.fromkeys(("ffn_gate", "ffn_up", "ffn_down_t"), (64, 32))
    sizes = {"fc1": (8, 32), "fc2": (64, 8), **wide, name: dims}
    with_dims({f"blk.0.{name}": dims for name, dims in sizes.items()}, tmp_path / "source.gguf")
    assert refusal(bundle, tmp_path / "source.gguf").startswith(message)


@pytest.mark.parametrize("count", [u32(2**32 - 1), text("3"), boolean(True), None])
def test_a_missing_block_count_is_refused(count, source):
    with_changes(source, lambda keys, _: keys.update({"llama.block_count": count}))
    assert "llama.block_count is" in refusal(bundle, source)


def test_bundling_twice_is_refused(source, bundled):
    assert refusal(bundle, bundled) == "its neurons are bundled already"
    assert refusal(unbundle, source) == "its neurons are not bundled"


def test_other_commands_refuse_bundles(bundled):
    """Quantising and placing say how to restore the tensors."""
    advice = "its neurons are bundled: `assay bundle --undo` gives back the tensors"
    with GGUFFile(bundled) as file:
        with pytest.raises(QuantiseError) as error:
            choices(file, Recipe("Q4_0"))
        assert str(error.value) == f"{bundled}: {advice}"
        with pytest.raises(PlacementError) as refused:
            parts(file)
        assert str(refused.value) == f"{bundled}: {advice}"


Keys = dict[str, object]
Shapes = dict[str, tuple[str, tuple[int, ...]]]


def with_changes(path: Path, change: Callable[[Keys, Shapes], object]) -> None:
    """The file with other keys and tensors, whose bytes are zeros."""
    with GGUFFile(path) as file:
        keys: Keys = dict(keys_of(file))
        shapes: Shapes = {t.name: (t.type_name, t.dims) for t in file.tensors.values()}
    change(keys, shapes)
    tensors = [NewTensor(name, *shape) for name, shape in shapes.items()]
    keys = {key: value for key, value in keys.items() if value is not None}
    data = (np.zeros(tensor.n_bytes, np.uint8) for tensor in tensors if tensor.n_bytes)
    write_gguf(path, keys, tensors, data)


def formats(*blocks: str) -> Callable[[Keys, Shapes], None]:
    def change(keys: Keys, _: Shapes) -> None:
        keys[FORMATS_KEY] = texts(blocks)

    return change


def key(name: str, value: object) -> Callable[[Keys, Shapes], None]:
    return lambda keys, _: keys.update({name: value})


def tensor(name: str, *shape: object) -> Callable[[Keys, Shapes], None]:
    """Another tensor of that name, or none."""
    if not shape:
        return lambda _, shapes: shapes.pop(name) and None
    return lambda _, shapes: shapes.update({name: shape})


FIRST, SECOND = "gate:F16 up:F16 down_t:F16", "gate:Q8_0 up:Q4_0 down_t:Q4_K"
THIRD = "gate:Q4_K up:Q4_K down_t:Q6_K"
REST = SECOND, THIRD
BLOCK_0 = f"key {FORMATS_KEY}, block 0: "
LIES = {
    "no formats": (key(FORMATS_KEY, None), f"key {FORMATS_KEY}, which says"),
    "one text": (key(FORMATS_KEY, text(FIRST)), f"key {FORMATS_KEY} is no array of texts"),
    "numbers": (key(FORMATS_KEY, i32s([1, 1, 1])), f"key {FORMATS_KEY} is no array of texts"),
    "too few": (formats(FIRST, SECOND), f"key {FORMATS_KEY} says nothing of tensor 'blk.2."),
    "too many": (formats(FIRST, *REST, FIRST), "tensor blk.3.ffn_bundle.weight is missing"),
    "none": (formats("", *REST), f"key {FORMATS_KEY} says nothing of tensor 'blk.0."),
    "no down": (formats("gate:F16 up:F16", *REST), f"{BLOCK_0}'gate:F16 up:F16' does not name"),
    "other order": (formats("up:F16 gate:F16 down_t:F16", *REST), f"{BLOCK_0}'up:F16 gate"),
    "twice": (formats("up:F16 up:F16 down_t:F16", *REST), f"{BLOCK_0}'up:F16 up"),
    "spaces": (formats(FIRST.replace(" ", "  "), *REST), f"{BLOCK_0}'gate:F16  up"),
    "lines": (formats("gate:F16\nup:F16 down_t:F16", *REST), f"{BLOCK_0}'gate:F16\\n"),
    "no UTF-8": (formats("\udcff", *REST), f"{BLOCK_0}'\\udcff' does not name"),
    "no format": (formats(FIRST.replace("F16", "F5"), *REST), f"{BLOCK_0}there is no format 'F5'"),
    "nothing": (formats("gate: up: down_t:", *REST), f"{BLOCK_0}there is no format ''"),
    "other format": (
        formats(FIRST.replace("F16", "F64"), *REST),
        "tensor blk.0.ffn_bundle.weight is I8 [37, 1536], not I8 [37, 6656]",
    ),
    "ungated": (
        formats("up:Q4_0 down_t:Q4_0", *REST),
        "tensor blk.0.ffn_bundle.weight is I8 [37, 1536], not I8 [37, 512]",
    ),
    "a beginning": (key(ALIGNMENT, u32(32)), "tensor blk.0.ffn_bundle.weight begins at byte"),
    "no predictor": (tensor("blk.0.fc2.weight"), "tensor blk.0.fc2.weight is missing"),
    "other neurons": (
        tensor("blk.0.fc2.weight", "F16", (38, 32)),
        "tensor blk.0.ffn_bundle.weight is I8 [37, 1536], not I8 [38, 1536]",
    ),
    "other rows": (
        tensor("blk.1.fc1.weight", "F16", (32, 255)),
        f"key {FORMATS_KEY}, block 1: Q8_0 holds multiples of 32 elements, not 255",
    ),
    "no predictor's shape": (tensor("blk.1.fc1.weight", "F16", (31, 256)), "blk.1: fc1 [31, 256]"),
    "no bundle": (tensor("blk.1.ffn_bundle.weight"), "tensor blk.1.ffn_bundle.weight is missing"),
    "other type": (
        tensor("blk.1.ffn_bundle.weight", "F16", (37, 256)),
        "tensor blk.1.ffn_bundle.weight is F16 [37, 256], not I8 [37, 1536]",
    ),
    "beside": (
        tensor("blk.1.ffn_up.weight", "F16", (37, 256)),
        "tensor blk.1.ffn_up.weight is there beside its bundle",
    ),
    "another block": (
        tensor("blk.9.ffn_bundle.weight", "I8", (37, 512)),
        f"key {FORMATS_KEY} says nothing of tensor 'blk.9.ffn_bundle.weight'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_invalid_bundles_are_refused(lie, bundled):
    """One line says what is wrong and where, from any command, and unbundling writes nothing."""
    change, message = LIES[lie]
    with_changes(bundled, change)
    assert refusal(unbundle, bundled).startswith(message)
    assert refusal(lambda file, _: bundles(file), bundled).startswith(message)


@pytest.mark.parametrize("alignment", [text("32"), u32(48), u32(0)])
def test_invalid_alignments_are_refused(alignment, bundled):
    with_changes(bundled, key(ALIGNMENT_BEFORE, alignment))
    assert refusal(unbundle, bundled) == f"key {ALIGNMENT_BEFORE} is no power of two in UINT32"


WORDS = st.sampled_from(["gate", "up", "down_t", "F16", "F32", "Q4_K", ":", " ", "\n", "\0", "é"])
PAIRS = st.builds("{}:{}".format, st.sampled_from(PARTS), st.sampled_from(["F16", "F32", "Q4_K"]))
TEXTS = st.lists(WORDS, max_size=12).map("".join) | st.text(max_size=20)


@given(TEXTS | st.lists(PAIRS, min_size=2, max_size=3, unique_by=lambda p: p[0]).map(" ".join))
def test_any_text_as_the_key(tmp_path_factory, said):
    """Any text as the key is refused, or describes the file."""
    path = tmp_path_factory.getbasetemp() / "said.gguf"
    if not path.exists():
        made(bundle, MIXED.write(path.with_name("said-of.gguf")), path)
    with_changes(path, formats(said, SECOND, THIRD))
    known = []
    with GGUFFile(path) as file, contextlib.suppress(BundleError):
        known += [bundles(file)[0]]
    for found in known:
        assert " ".join(f"{part}:{row.format}" for part, row in found.parts.items()) == said
        assert tuple(found.parts) in (PARTS, UNGATED)
        last = list(found.parts.values())[-1]
        assert last.begin + last.n_bytes <= found.stride == 1536
