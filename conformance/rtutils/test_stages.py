"""Stages: a barrier wherever a thread needs another one's results, and nowhere else."""

import random
from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from conformance.support.models.small_models import Small
from conformance.support.models.steps import loaded
from engine.compile.plan import Plan, calls_of, shape_of, spec_of, with_kernels, with_own
from engine.compile.stages import stages
from engine.graph import Graph, Value
from kernels.call import bind
from kernels.cpu.runtime.share import arguments, part, share
from kernels.cpu.runtime.team import Team
from kernels.kernel import Kernel
from kernels.table import variants
from reference.op import Array, Shape

THREADS = 3
TWO_PASSES = (
    "x: f32[tokens width], y: f32[tokens width], scratch: f32[elements] -> out: f32[tokens width]"
)


@pytest.fixture(params=["F32", "Q4_0"], scope="module")
def model(request, tmp_path_factory):
    path = Small(format=request.param, biases=True).write(tmp_path_factory.mktemp("s") / "s.gguf")
    with loaded(path, context=64, batch=16, outputs=4) as model:
        yield model


def labels(graph: Graph) -> list[list[str]]:
    """The labels of each stage's nodes, with the first kernels of the table."""
    steps = with_kernels(graph, {spec_of(n): variants(n.op, n.format)[0] for n in graph.nodes})
    calls = calls_of([with_own(step, {"tokens": 16}) for step in steps])
    return [[steps[call.step].node.label for call in stage] for stage in stages(calls)]


def activation(name: str, *dims: int | str) -> Value:
    return Value(name, "activation", "f32", dims)


def weight(name: str, rows: int, width: int) -> Value:
    return Value(name, "weight", "u8", (rows, width), "F32")


def run_with_late_threads(plan: Plan, rng: random.Random) -> None:
    """Run each stage with its threads as far apart as possible: each finishes before the next one
    starts, or in random order."""
    ready = iter(plan.entries)
    for stage in plan.stages:
        entries = [next(ready) for _ in stage]
        turns = [thread for thread in range(THREADS) for _ in entries]
        if rng.random() < 0.5:
            rng.shuffle(turns)
        else:
            order = rng.sample(range(THREADS), THREADS)
            turns = [order[thread] for thread in turns]
        left = [iter(entries) for _ in range(THREADS)]
        for thread in turns:
            share, block = next(left[thread])
            share(block, thread, THREADS)


@pytest.mark.parametrize(("tokens", "outputs"), [(1, 1), (7, 3), (16, 4)])
def test_no_dependencies_within_a_stage(model, tokens, outputs):
    """However far a thread is ahead within a stage, no bit changes."""
    model.cells.clear()
    rows = range(outputs)
    expected = model.step(range(tokens), range(tokens), [(0,)] * tokens, rows).copy()
    for seed in range(30):
        model.plan.arena[:] = 0xFF  # NaN: nothing is left of the run before
        run_with_late_threads(model.plan, random.Random(seed))
        assert_array_equal(model.plan.logits[:outputs], expected)


def test_a_block_has_eleven_barriers_or_fewer(model):
    """Projections share a stage, and so do operations on single tokens."""
    named = [[model.plan.steps[c.step].node.label for c in stage] for stage in model.plan.stages]
    of_block = [stage for stage in named if any(label.startswith("blk.1.") for label in stage)]
    assert len(of_block) <= 12  # the first of them belongs to the block before, too
    (ropes,) = (stage for stage in named if "blk.1.q_rope" in stage)
    assert {"blk.1.k_rope", "blk.1.k_cache_write", "blk.1.v_cache_write"} <= set(ropes)
    (gate,) = (stage for stage in named if "blk.1.ffn_gate" in stage)
    assert "blk.1.ffn_up" in gate
    (last,) = (stage for stage in named if "rows" in stage)
    assert not any(label.endswith("residual") for label in last)


X, Y = (Value(name, "input", "f32", ("tokens", 32)) for name in "xy")


def test_independent_calls_share_a_stage():
    """Two products of one input need no barrier, a product of a product does."""
    graph = Graph()
    a = graph("linear", "a", x=X, weight=weight("wa", 32, 32))
    b = graph("linear", "b", x=X, weight=weight("wb", 32, 32))
    graph("linear", "c", x=a, weight=weight("wc", 32, 32))
    graph("add", "d", x=b, y=X)
    assert labels(graph) == [["a", "b"], ["c", "d"]]


def test_overwriting_waits_for_readers():
    """A call that overwrites what another thread may still read waits for it."""
    graph = Graph()
    x = activation("x", "tokens", 32)
    graph("linear", "a", x=x, weight=weight("w", 32, 32))
    graph("silu", "b", out=x, x=Y)
    graph("linear", "c", out=x, x=activation("a", "tokens", 32), weight=weight("w", 32, 32))
    assert labels(graph) == [["a"], ["b"], ["c"]]


def test_calls_divided_by_tokens_share_a_stage():
    """A chain of calls that are divided by tokens is one stage."""
    graph = Graph()
    h = graph("add", "a", x=X, y=X)
    h = graph("rms_norm", "b", x=h, weight=Value("w", "weight", "f32", (32,)), eps=1e-5)
    graph("silu", "c", x=h)
    assert labels(graph) == [["a", "b", "c"]]


def test_gathered_tokens_need_a_barrier():
    """Gathered rows may be another thread's, even if there are as many as tokens."""
    for size in ("outputs", "tokens"):
        graph = Graph()
        h = graph("silu", "a", x=X)
        rows = Value("rows", "input", "i32", (size,))
        picked = graph("embedding", "b", tokens=rows, weight=h.as_weight())
        graph("silu", "c", x=picked)
        assert labels(graph) == [["a"], ["b", "c"]]


def test_different_divisions_need_a_barrier():
    """If two calls divide a value by different sizes, a thread's parts differ."""
    graph = Graph()
    h = graph("silu", "a", x=X)
    graph("silu", "b", x=h.view("halves", 16))
    assert labels(graph) == [["a"], ["b"]]


@share(TWO_PASSES)
def sums(args, thread, n_threads):
    """scratch = x + y, divided among threads in reverse."""
    x, y, scratch, _ = arguments(args, TWO_PASSES)
    xs, ys = x.reshape(x.size), y.reshape(y.size)
    first, last = part(x.size, n_threads - 1 - thread, n_threads)
    for i in range(first, last):
        scratch[i] = xs[i] + ys[i]


@share(TWO_PASSES)
def copy(args, thread, n_threads):
    """out = scratch, where another thread has written this thread's part."""
    x, _, scratch, out = arguments(args, TWO_PASSES)
    target, (first, last) = out.reshape(out.size), part(x.size, thread, n_threads)
    for i in range(first, last):
        target[i] = scratch[i]


def elements(shape: Shape) -> int:
    return shape["tokens"] * shape["width"]


def two_pass_plan(team: Team, splits: str) -> tuple[Plan, dict[str, Array]]:
    """silu(x) + x in two passes, then silu of it."""
    graph = Graph()
    x = Value("x", "input", "f32", ("tokens", 40))
    h = graph("silu", "h", x=x)
    total = graph("add", "sum", x=h, y=x)
    last = graph("silu", "last", x=total)
    chosen = {spec_of(node): variants(node.op)[0] for node in graph.nodes}
    kernel = Kernel("add", "passes", sums, scratch=elements, then=copy, splits=splits)
    chosen[spec_of(graph.nodes[1])] = kernel
    arrays = {"x": np.random.default_rng(0).standard_normal((16, 40)).astype(np.float32)}
    return Plan(with_kernels(graph, chosen), arrays, {"tokens": 16}, last, team), arrays


@pytest.mark.parametrize("splits", ["", "tokens"])
def test_second_passes_wait_for_the_first(splits):
    """A kernel of two shares has a barrier between, and exclusive scratch memory for both."""
    with Team(THREADS) as team:
        plan, arrays = two_pass_plan(team, splits)
        steps = [[call.step for call in stage] for stage in plan.stages]
        assert steps == [[0], [1], [1], [2]]
        assert [call.share for call in plan.calls[1:3]] == [sums, copy]
        begins = sorted(plan.offsets[name] for name in ("h", "sum", "sum.scratch"))
        assert all(a + 16 * 40 * 4 <= b for a, b in pairwise(begins))
        assert plan.offsets["last"] < max(plan.offsets.values())  # in the place of what is dead

        x = arrays["x"]
        silu = variants("silu")[0]
        for tokens in (16, 5):
            plan.resize(tokens=tokens)
            plan.arena[:] = 0xFF
            plan.run()
            h, out = np.empty((tokens, 40), np.float32), np.empty((tokens, 40), np.float32)
            run_one(silu, x[:tokens], h)
            run_one(silu, h + x[:tokens], out)
            assert_array_equal(plan.logits[:tokens], out)
        assert "sum.scratch" not in [value.name for step in plan.steps for value in step.reads()]


def run_one(kernel: Kernel, x: Array, out: Array) -> None:
    bind(kernel, {"x": x}, {"out": out})()


def test_scratch_gets_every_size(model):
    """Sizes that occur only in products of axes are passed, as for the limits."""
    (step, *_) = (s for s in model.plan.steps if s.node.op == "attention")
    shape, config = shape_of(step.node, model.limits), model.config
    sizes = {"heads": config.heads, "kv_heads": config.kv_heads, "head_dim": config.head_dim}
    assert shape.items() >= {"tokens": 16, "capacity": 64, **sizes}.items()


def test_an_idle_program_has_the_plans_barriers(model):
    """It has the plan's stages, and neither reads nor writes."""
    idle = model.plan.idle()
    assert idle.entries == model.plan.program.entries == len(model.plan.stages)
    model.plan.arena[:] = 0xA5
    with Team(THREADS) as team:
        for _ in range(3):
            team.run(idle)
    assert (model.plan.arena == 0xA5).all()
