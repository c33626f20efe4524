"""`assay imatrix`: squared activations of the reference's matrices, and both file formats."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from conformance.llama.peers.compare import EXACT
from conformance.support.models.small_families import SmallDeepSeek, SmallMixture
from conformance.support.models.small_models import Small
from conformance.support.program import fault, printed
from conformance.support.refusals import refusal
from data.golden import FOLDER
from engine import Engine
from engine.embedded import resolve
from engine.gguf.file import GGUFError
from engine.gguf.writer import NewTensor, text, write_gguf
from engine.passes.observe import Observed, observe, observed
from engine.quantise.importance import LEAST, Importance, ImportanceError, read, unmet, write
from reference.linear import linear
from reference.op import Array

HELD_OUT = FOLDER.parent / "story" / "held_out.txt"
TIED = Small(blocks=2, tied=True, biases=True)
CHUNKS = [[1, *range(5 + i, 45 + i)] for i in range(3)]


def total_sums(path: Path, **options: Any) -> dict[str, Observed]:
    """Sums of squares over all chunks."""
    with Engine.load(path, context=64, passes=(observe,), kv_format="F32", **options) as engine:
        for chunk in CHUNKS:
            engine.reset()
            engine.model.evaluate(chunk, 0)
        return observed(engine.model)


def by_reference(model: Small) -> dict[str, tuple[Array, Array]]:
    """The same in float64, by the reference, for each expert and head, with token counts."""
    weights, norms = model.tensors()
    found, places = dict[str, tuple[Array, Array]](), dict[int, tuple[str, int]]()
    for name, weight in weights.items():
        matrices = weight.data if weight.data.ndim == 3 else weight.data[None]
        places |= {matrix.ctypes.data: (name, i) for i, matrix in enumerate(matrices)}

    def seen(x: Array, weight: Array, format: str) -> Array:
        name, i = places[weight.ctypes.data]
        count = max(1, weights[name].data.ndim == 3 and len(weights[name].data))
        sums, met = found.setdefault(name, (np.zeros((count, x.shape[1])), np.zeros(count)))
        sums[i] += (x.astype(np.float64) ** 2).sum(axis=0)
        met[i] += len(x)
        return linear(x, weight, format)

    for chunk in CHUNKS:
        model.formula()(np.array(chunk, np.int32), weights, norms, model.shape(), linear=seen)
    return {name: sums for name, sums in found.items() if name.startswith("blk.")}


OBSERVED = {
    "f16": Small(format="F16"),
    "tied": TIED,
    "experts": SmallMixture(experts=12, used=2, format="F16"),
    "heads, and some experts": SmallDeepSeek(),
}


@pytest.mark.parametrize("model", OBSERVED.values(), ids=OBSERVED)
def test_sums_are_those_of_the_reference(tmp_path, model):
    """For every matrix but the output, over all tokens of all chunks, by expert: activations have
    float32's error, for a norm the root of EXACT."""
    ours, theirs = total_sums(model.write(tmp_path / "m.gguf"), threads=1), by_reference(model)
    absorbed = {n for n in ours if n.endswith(("attn_k_b.weight", "attn_v_b.weight"))}
    assert set(ours) == set(theirs) | absorbed  # which the formula multiplies into others
    assert all((ours[name].sums > 0).all() for name in absorbed)
    for name, (sums, met) in theirs.items():
        got = ours[name].sums.reshape(sums.shape)
        assert np.abs(got - sums).max() <= 2 * EXACT**0.5 * sums.max(), name
        assert (ours[name].counts is not None) == name.endswith("_exps.weight")
        assert ours[name].counts is None or np.array_equal(ours[name].counts, met), name


def test_batches_and_threads_do_not_matter(tmp_path):
    """Tokens are added in order for any batch: the same bits."""
    path = SmallMixture(format="Q4_0").write(tmp_path / "m.gguf")
    want = total_sums(path, threads=1)
    for options in ({"threads": 2}, {"threads": 2, "batch": 7}, {"threads": 1, "batch": 1}):
        found = total_sums(path, **options)
        assert found.keys() == want.keys()
        for name in want:
            assert np.array_equal(found[name].sums, want[name].sums), options
            assert np.array_equal(found[name].counts, want[name].counts), options


def sums_of(*names: str) -> dict[str, Observed]:
    rng = np.random.default_rng(4)
    return {name: Observed(rng.random(5 + i) ** 4 * 100) for i, name in enumerate(names)}


def test_imatrix_round_trip(tmp_path):
    """A written file is read as means; the `gguf` package finds llama.cpp's keys."""
    out, sums = tmp_path / "i.gguf", sums_of("blk.1.b.weight", "blk.0.a.weight")
    write(out, sums, 30, ("a.txt",), 3, 10)
    found = read(out)
    assert (found.source, found.texts, found.chunks) == ("i.gguf", ("a.txt",), 3)
    for name, met in sums.items():
        means = met.sums.astype(np.float32) / np.float32(30)
        assert np.array_equal(found.columns[name], means)
    peer = gguf.GGUFReader(out)
    assert peer.fields["general.type"].contents() == "imatrix"
    assert peer.fields["imatrix.datasets"].contents() == ["a.txt"]
    assert peer.fields["imatrix.chunk_count"].contents() == 3
    assert peer.fields["imatrix.chunk_size"].contents() == 10
    shapes = {t.name: (t.tensor_type.name, *map(int, t.shape)) for t in peer.tensors}
    assert shapes["blk.1.b.weight.in_sum2"] == ("F32", 5, 1)
    assert shapes["blk.1.b.weight.counts"] == ("F32", 1, 1)
    assert found.provenance()["quantize.imatrix.entries_count"][1] == 2


def word(text: str) -> bytes:
    return struct.pack("<i", len(text.encode())) + text.encode()


def legacy(*entries: tuple[str, int, list[float]], tail: tuple[int, str] | None = None) -> bytes:
    """A file of llama.cpp's first format."""
    data = struct.pack("<i", len(entries))
    for name, calls, sums in entries:
        data += word(name) + struct.pack(f"<ii{len(sums)}f", calls, len(sums), *sums)
    return data + (struct.pack("<i", tail[0]) + word(tail[1]) if tail else b"")


ENTRIES = ("blk.0.a.weight", 4, [4.0, 8.0, 0.0]), ("blk.0.b.weight", 2, [1.0, 3.0])


@pytest.mark.parametrize("tail", [None, (7, "café.txt"), (7, "")])
def test_legacy_files(tmp_path, tail):
    """Means are sums divided by calls; the text's name may be missing."""
    path = tmp_path / "i.dat"
    path.write_bytes(legacy(*ENTRIES, tail=tail))
    found = read(path)
    assert {name: c.tolist() for name, c in found.columns.items()} == {
        "blk.0.a.weight": [1, 2, 0], "blk.0.b.weight": [0.5, 1.5],
    }  # fmt: skip
    assert (found.chunks, found.texts) == ((tail[0], (tail[1],)) if tail else (0, ()))


def test_importance_of_columns():
    """Importance is the mean of squares up to a power of two; without data all columns are equal.
    Each expert has its own."""
    means = np.float32([3, 0, 1e-20, 0.75])
    found = Importance({"a": means, "none": np.zeros(3, np.float32)}, "i")
    wanted = np.array([[0.75, LEAST, LEAST, 0.1875]], np.float32)
    assert np.array_equal(found.of("a", 4), wanted)
    assert np.array_equal(found.of("a", 2, experts=2), [[0.75, LEAST], [LEAST, 0.75]])
    assert np.array_equal(found.of("none", 3), np.ones((1, 3)))
    assert np.array_equal(found.of("none", 1, experts=3), np.ones((3, 1)))
    assert found.of("b", 4) is None
    with pytest.raises(ImportanceError, match="i: a has 4 columns there, and 8 in the model"):
        found.of("a", 8)


def test_experts_without_tokens(tmp_path):
    """A count of 0, as of an expert that no token chose, is not divided by."""
    path = tmp_path / "i.gguf"
    some = Observed(np.array([[4.0, 8], [0, 0], [3, 3]]), np.array([4, 0, 1]))
    write(path, {"none": Observed(np.zeros(4)), "some": some}, 0, (), 0, 0)
    assert np.array_equal(read(path).of("none", 4), np.ones((1, 4)))
    assert np.array_equal(read(path).of("some", 2, experts=3), [[0.25, 0.5], [1, 1], [0.75, 0.75]])
    shapes = {t.name: tuple(map(int, t.shape)) for t in gguf.GGUFReader(path).tensors}
    assert shapes["some.in_sum2"] == (2, 3)
    assert shapes["some.counts"] == (1, 3)
    assert unmet({"all": Observed(np.zeros((2, 1)), np.ones(2))}) == ""
    assert unmet({"some": some, "a": some}).startswith(
        "no token came to some experts, 1 of 3 in a and in 1 other tensor:"
    )


def test_truncated_files_are_refused(tmp_path):
    """A truncated file of either format is refused in one line; optional data after a legacy file's
    entries may be missing entirely."""
    old, new = tmp_path / "i.dat", tmp_path / "i.gguf"
    entries = len(legacy(*ENTRIES))
    whole = legacy(*ENTRIES, tail=(7, "a.txt"))
    write(new, sums_of("a", "b"), 30, ("a.txt",), 3, 10)
    written = new.read_bytes()
    cases = [(old, whole[:size]) for size in range(len(whole)) if size != entries]
    cases += [(new, written[:size]) for size in range(0, len(written) - 32, 13)]
    for path, data in cases:
        path.write_bytes(data)
        refusal((ImportanceError, GGUFError), path, read, path)


def gguf_with(kind: str = "imatrix", **tensors: tuple[str, Array]) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        entries = {name.replace("__", "."): value for name, value in tensors.items()}
        infos = [NewTensor(name, form, a.shape) for name, (form, a) in entries.items()]
        data = (a.reshape(-1).view(np.uint8) for _, a in entries.values())
        write_gguf(path, {"general.type": text(kind)}, infos, data)

    return make


ONE = np.ones((1, 1), np.float32)
FOUR, THREE = np.ones((1, 4), np.float32), np.ones((3, 1), np.float32)
NOISE = np.random.default_rng(0).bytes(5000)
WRONG = {
    "noise": (NOISE, "no importance matrix, or it was cut short"),
    "text": (b"Once upon a time there was an otter. " * 99, "no importance matrix, or"),
    "zeros": (bytes(100), "there is nothing in"),
    "nan": (legacy(("a", 1, [1.0, np.nan])), "a has what is no mean of squares"),
    "negative": (legacy(("a", 1, [1.0, -1.0])), "a has what is no mean of squares"),
    "infinite": (gguf_with(a__in_sum2=("F32", FOUR * np.inf), a__counts=("F32", ONE)),
                 "a has what is no mean of squares"),
    "a model": (gguf_with("model"), "this GGUF file is no importance matrix"),
    "empty": (gguf_with(), "there is nothing in"),
    "no counts": (gguf_with(a__in_sum2=("F32", FOUR)), "a has no counts, or not in F32"),
    "halves": (gguf_with(a__in_sum2=("F16", FOUR.astype(np.float16)), a__counts=("F32", ONE)),
               "a has no counts, or not in F32"),
    "other counts": (gguf_with(a__in_sum2=("F32", FOUR), a__counts=("F32", THREE)),
                     "a has other counts than sums"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "words"), WRONG.values(), ids=WRONG.keys())
def test_other_files_are_refused(tmp_path, make, words):
    """One line that names the file."""
    path = tmp_path / "i.dat"
    path.write_bytes(make) if isinstance(make, bytes) else make(path)
    assert words in refusal(ImportanceError, path, read, path)


def test_the_imatrix_command(inside, tmp_path):
    """It reads a text or standard input, adds to an older matrix, and writes for `quantize`."""
    out = tmp_path / "i.gguf"
    options = ["-c", "64", "--chunks", "2", "-t", "1", "-o", out]
    stdout = printed(inside("imatrix", "story-draft", HELD_OUT, *options))
    found = read(out)
    assert (found.chunks, found.texts) == (2, ("held_out.txt",))
    assert stdout == f"{out}: {len(found.columns)} matrices, from 128 tokens in 2 chunks\n"
    printed(inside("imatrix", "story-draft", "-", *options, input=HELD_OUT.read_text()))
    assert read(out).columns.keys() == found.columns.keys()
    assert read(out).texts == ("-",)
    told = json.loads(inside("imatrix", "story-draft", HELD_OUT, *options, "--json")[1])
    matrices = len(found.columns)
    assert told == {
        "file": str(out), "matrices": matrices, "tokens": 128, "chunks": 2, "context": 64
    }  # fmt: skip
    arguments = "quantize", "story-draft", tmp_path / "q.gguf", "Q4_0", "--imatrix", out
    code, _, stderr = inside(*arguments, "--output-type", "Q8_0", "--dry-run")
    assert code == 0
    assert stderr == "note: token_embd.weight: not in the importance matrix\n"


def test_the_command_refuses_invalid_paths(inside, tmp_path):
    """Paths that cannot be files are refused before a model is loaded."""
    model, copy = tmp_path / "m.gguf", tmp_path / "copy.txt"
    model.write_bytes(resolve("story-draft").read_bytes())
    copy.write_bytes(HELD_OUT.read_bytes())
    for place in (tmp_path, model, copy, tmp_path / "none" / "i.gguf"):
        line = fault(inside("imatrix", model, copy, "-c", "64", "-o", place))
        assert "cannot be written" in line
    assert copy.read_bytes() == HELD_OUT.read_bytes()
    assert model.read_bytes() == resolve("story-draft").read_bytes()
