"""Laws of attention over a KV cache."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from conformance.kernel.here import each, inputs_of, run
from kernels.call import call
from kernels.cpu.attention import FEW
from kernels.cpu.attention_sums import CHUNK
from kernels.cuda import attention as cuda
from kernels.judge import compare
from kernels.kernel import Kernel
from kernels.shapes import ShapeError
from reference.attention import MERGED
from reference.formats import FORMATS
from reference.op import Case

HEAD_DIM, CELLS = 64, 30
LONG = 3 * CHUNK + 5
UNIT = 127  # a value that every format holds exactly

some_and_many = pytest.mark.parametrize("capacity", [CELLS, LONG])


def scene(kernel: Kernel, seed: int = 0, **shape: int) -> dict[str, Any]:
    """Five tokens over scattered cells of two sequences."""
    usual = {"tokens": 5, "heads": 4, "kv_heads": 2, "head_dim": HEAD_DIM, "capacity": CELLS}
    plain = {"sequences": 2, "windowed": 0, "alibi": 1, "softcapped": 0}
    inputs: dict[str, Any] = inputs_of(kernel, seed, **{**usual, **plain, **shape})
    inputs["spans"][:, 2] = np.maximum(inputs["spans"][:, 2], 1)
    return inputs


def weighing(kernel: Kernel, cells: int = CELLS) -> dict[str, Any]:
    """One token over cells in order, each with one value: its output is UNIT times its weights."""
    inputs = scene(kernel, tokens=1, heads=1, kv_heads=1, sequences=1, alibi=0)
    values = UNIT * np.eye(CELLS, HEAD_DIM, dtype=np.float32)
    inputs["v"] = FORMATS[kernel.format].quantise(values)
    inputs["lists"] = np.arange(CELLS, dtype=np.int32)[None]
    inputs["spans"] = np.array([[0, 0, cells]], np.int32)
    inputs["positions"] = np.array([cells - 1], np.int32)
    return inputs


def weights_of(kernel: Kernel, **inputs: Any) -> np.ndarray:
    """The weights that the one token of `weighing` gives to its cells."""
    return run(kernel, **inputs)[0, 0] / UNIT


@each("attention")
def test_cells_out_of_sight_never_matter(kernel):
    """Whatever other cells hold, later ones included, NaN even, no bit changes."""
    inputs = scene(kernel)
    before = run(kernel, **inputs)
    for t, (sequence, begin, end) in enumerate(inputs["spans"]):
        seen = inputs["lists"][sequence, begin:end]
        spoilt = {name: np.full_like(inputs[name], 0xFF) for name in ("k", "v")}
        for name in spoilt:
            spoilt[name][seen] = inputs[name][seen]
        assert_array_equal(run(kernel, **{**inputs, **spoilt})[t], before[t])


@each("attention")
@some_and_many
def test_where_a_cell_lies_changes_no_bit(kernel, capacity):
    """Moving cells about the cache, lists following, gives the same bits."""
    inputs = scene(kernel, 1, capacity=capacity)
    moved = np.random.default_rng(2).permutation(capacity)  # new place -> old place
    places = np.argsort(moved).astype(np.int32)
    elsewhere = {name: inputs[name][moved] for name in ("k", "v", "cell_positions")}
    elsewhere["lists"] = places[inputs["lists"]]
    assert_array_equal(run(kernel, **{**inputs, **elsewhere}), run(kernel, **inputs))


@each("attention")
@pytest.mark.parametrize(("tokens", "capacity"), [(5, CELLS), (FEW, LONG), (FEW + 1, LONG)])
@pytest.mark.parametrize("alike", [True, False], ids=["one-prompt", "any-spans"])
def test_a_token_attends_alone(kernel, tokens, capacity, alike):
    """Tokens in a batch get what they get one by one, bit for bit, over however many chunks."""
    inputs = scene(kernel, 3, tokens=tokens, capacity=capacity)
    if alike:  # the last tokens of one sequence, just beyond a chunk
        ends = np.arange(tokens) + 2 * CHUNK - 2 if capacity == LONG else np.arange(tokens) + 14
        inputs["spans"] = np.array([[1, 3, 3 + end] for end in ends], np.int32)
    together = run(kernel, **inputs)
    for t in range(tokens):
        one = {name: inputs[name][t : t + 1] for name in ("q", "spans", "positions")}
        assert_array_equal(run(kernel, **{**inputs, **one}), together[t : t + 1])


@each("attention")
@pytest.mark.parametrize("tokens", [1, FEW + 2], ids=["few", "many"])
@pytest.mark.parametrize("cells", [CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, LONG])
def test_chunks_merge_within_the_bound(kernel, cells, tokens):
    """At and around every end of a chunk the result is the reference's, within its bound."""
    inputs = scene(kernel, 8, tokens=tokens, heads=2, kv_heads=1, capacity=LONG)
    inputs["spans"][:, 1:] = [[max(0, cells - t) // 3 * (t % 2), cells - t] for t in range(tokens)]
    verdict = compare(kernel, Case({}), inputs, {"out": run(kernel, **inputs)})
    assert verdict.passed, verdict.failure


@each("attention")
@pytest.mark.parametrize("tokens", [1, FEW + 1], ids=["few", "many"])
def test_many_chunks_merge_within_the_bound(kernel, tokens):
    """Beyond 32 chunks, where a merge that goes by warps begins anew, as before them."""
    cells = 33 * cuda.CHUNK + 5
    inputs = scene(kernel, 9, tokens=tokens, heads=1, kv_heads=1, capacity=cells)
    inputs["spans"][:, 1:] = [0, cells]
    together = run(kernel, **inputs)
    verdict = compare(kernel, Case({}), inputs, {"out": together})
    assert verdict.passed, verdict.failure
    one = {name: inputs[name][:1] for name in ("q", "spans", "positions")}
    assert_array_equal(run(kernel, **{**inputs, **one}), together[:1])


def test_the_bound_allows_these_chunks():
    """Chunks are no smaller than what the reference's bound was derived for, and those of a GPU
    end wherever the CPU's do, where these laws look."""
    assert min(CHUNK, cuda.CHUNK) >= MERGED
    assert CHUNK % cuda.CHUNK == 0
    assert cuda.FEW == FEW


@each("attention")
def test_grouped_queries_are_full_heads_repeated(kernel):
    """Sharing a KV head among query heads is copying it for each, bit for bit."""
    inputs = scene(kernel, 4, heads=6, kv_heads=3)

    def repeated(cache: np.ndarray) -> np.ndarray:
        rows = cache.reshape(CELLS, 3, -1)
        return np.ascontiguousarray(np.repeat(rows, 2, axis=1).reshape(CELLS, -1))

    full = {name: repeated(inputs[name]) for name in ("k", "v")}
    assert_array_equal(run(kernel, **{**inputs, **full}), run(kernel, **inputs))


@each("attention")
def test_one_cell_returns_its_value(kernel):
    """A token that sees one cell gets that cell's value, exactly."""
    inputs = scene(kernel, 5, tokens=1, heads=2, kv_heads=2)
    inputs["spans"] = np.array([[1, 7, 8]], np.int32)
    value = FORMATS[kernel.format].dequantise(inputs["v"][inputs["lists"][1, 7]])
    assert_array_equal(run(kernel, **inputs).ravel(), value)


@each("attention")
def test_no_cells_give_zero(kernel):
    """A token that sees nothing gets 0, not NaN."""
    inputs = scene(kernel)
    inputs["spans"][:, 2] = inputs["spans"][:, 1]
    assert_array_equal(run(kernel, **inputs), 0)


@each("attention")
@some_and_many
def test_a_window_is_a_cache_without_the_rest(kernel, capacity):
    """A span that begins later is the same as a list that never held what came before."""
    inputs = scene(kernel, 6, capacity=capacity)
    inputs["spans"] = np.array([[0, 11, capacity - 2]] * 5, np.int32)
    shorter = {"lists": np.roll(inputs["lists"], -11, axis=1)}
    shorter["spans"] = np.array([[0, 0, capacity - 13]] * 5, np.int32)
    assert_array_equal(run(kernel, **{**inputs, **shorter}), run(kernel, **inputs))


@each("attention")
def test_outputs_are_averages(kernel):
    """No output lies outside what the seen values span."""
    inputs = scene(kernel, 7, heads=1, kv_heads=1)
    out = run(kernel, **inputs)
    for t, (sequence, begin, end) in enumerate(inputs["spans"]):
        seen = inputs["v"][inputs["lists"][sequence, begin:end]]
        values = FORMATS[kernel.format].dequantise(seen)
        assert (out[t, 0] <= values.max(axis=0) + 1e-6).all()
        assert (out[t, 0] >= values.min(axis=0) - 1e-6).all()


@each("attention")
@pytest.mark.parametrize("cells", [1, 16, 17, CELLS])
def test_a_scale_of_zero_is_the_mean(kernel, cells):
    """With nothing to compare, every seen cell counts alike and the weights sum to one."""
    weights = weights_of(kernel, **{**weighing(kernel, cells), "scale": 0.0})
    assert_allclose(weights[:cells], 1 / cells, rtol=1e-6)
    assert_array_equal(weights[cells:], 0)


@each("attention")
def test_alibi_weights_fall_with_distance(kernel):
    """Among equal keys, each position further away weighs exp(-slope) times as much."""
    slope = 0.25
    inputs = {**weighing(kernel), "scale": 0.0, "slopes": np.array([slope], np.float32)}
    weights = weights_of(kernel, **inputs)[:CELLS]
    assert (np.diff(weights) > 0).all()
    assert_allclose(weights[:-1] / weights[1:], np.exp(-slope), rtol=1e-5)


@each("attention")
def test_a_softcap_bounds_the_odds(kernel):
    """With scores capped at 1 no cell outweighs another by more than e^2, however extreme."""
    inputs = {**weighing(kernel), "scale": 1e4, "softcap": 1.0}
    weights = weights_of(kernel, **inputs)[:CELLS]
    assert weights.max() / weights.min() == pytest.approx(np.exp(2), rel=1e-5)


@each("attention")
def test_huge_scores_do_not_overflow(kernel):
    """Scores far beyond exp's range pick the best cell."""
    inputs = {**weighing(kernel), "scale": 1e4}
    weights = weights_of(kernel, **inputs)[:CELLS]
    keys = FORMATS[kernel.format].dequantise(inputs["k"])
    assert weights[np.argmax(keys @ inputs["q"][0, 0])] == 1


@each("attention")
def test_the_plain_call_knows_its_own_format(kernel):
    """`call` needs no word of the format that the kernel's name says, and refuses another."""
    inputs = inputs_of(kernel, tokens=2, heads=4, kv_heads=2, head_dim=HEAD_DIM)
    given = {name: value for name, value in inputs.items() if name != "format"}
    assert_array_equal(call(kernel, given)["out"], run(kernel, **inputs))
    with pytest.raises(ShapeError, match="got format BF16"):
        call(kernel, {**given, "format": "BF16"})
