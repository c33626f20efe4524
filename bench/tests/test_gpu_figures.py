"""What bench.gpu_check measures and makes of it, without a GPU."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import bench.cuda.measure
from bench.cuda import cases, step
from bench.cuda.clock import Ceilings, contender
from bench.cuda.goals import GOALS, Goal, of_limit, peers_lines
from bench.cuda.jobs import jobs, of_op
from bench.cuda.measure import ROUNDING, Bound, kernels_for, measure, row_of
from bench.machine.conditions import conditions
from bench.race.experiment import Experiment, Rule
from bench.race.results import Measurement, Results, read
from data.shapes import ModelShape
from kernels.cuda.runtime.device import Buffer
from kernels.cuda.table import CUDA_KERNELS
from reference.table import OPS

SMALL = ModelShape(
    blocks=2, hidden=256, ffn=512, heads=4, kv_heads=2, head_dim=64, vocab=300, context=64
)
CEILINGS = Ceilings("made up", bandwidth=1e12, reading=1.1e12, peak=1e14, launch=1e-6, cache=1000)
FEW = Rule(least=3, most=3)


class Recorder:
    """A device of which only is known what it was asked for."""

    name = identity = "recorder"
    capability, bounded, emulated, library = 90, True, True, "none"

    def __init__(self):
        self.taken, self.launched = 0, []

    def memory(self):
        return 2**40, 2**40

    def empty(self, size):
        self.taken += 256 * (1 + size // 256)
        return Buffer(self.taken, size, self)

    def write(self, buffer, array):
        assert array.nbytes <= buffer.bytes

    def clear(self, buffer):
        pass

    def prepare(self, launch):
        pass

    def launch(self, launch, grid, values):
        assert not grid.empty
        self.launched.append((launch.function, values))

    def multiply(self, factors):
        self.launched.append(("multiply", [factors]))

    def wait(self):
        pass


class Turns:
    """A clock by which the n-th thing asked for took n seconds."""

    def __init__(self):
        self.asked: list[str] = []

    def wake(self):
        pass

    def repeats(self, enqueue):
        enqueue(0)
        return 2

    def seconds(self, enqueue, repeats):
        assert repeats == 2
        self.asked.append(enqueue(1))
        return float(len(self.asked))


@pytest.mark.parametrize(
    "case",
    [
        cases.linear("GEMV", "F16", 1, 96, 130),
        cases.linear("prefill", "Q4_0", 11, 64, 70),
        cases.attention(SMALL, "F16", 100),
        cases.attention(SMALL, "Q8_0", 70),
        cases.sparse("sparse_linear", SMALL, "Q4_0", 0.1),
        cases.sparse("sparse_axpy", SMALL, "F16", 0.1),
    ],
    ids=lambda case: f"{case.op}-{case.format}",
)
def test_the_part_that_is_checked_is_a_part_of_the_whole(case):
    """What the formula gives for the part's inputs is the part of what it gives for all, and the
    op has nothing to say against them."""
    op = OPS[case.op]
    assert op.complaint(case.inputs) == ""
    everything = op.expected(case.inputs)
    inputs, outputs = case.part(case.inputs, everything)
    assert outputs["out"].size
    np.testing.assert_allclose(op.expected(inputs)["out"], outputs["out"], rtol=1e-12)
    assert case.cost == op.cost(case.shape, case.format)


def test_copies_are_read_by_turns():
    """Each run has the next weight, all else stays; activations are rounded when asked for."""
    device, case = Recorder(), cases.linear("GEMV", "Q4_0", 1, 64, 70)
    kernel = next(k for k in CUDA_KERNELS if (k.op, k.format) == ("linear", "Q4_0"))
    bound = Bound(device, kernel, case.inputs, case.cold, copies=3)
    assert [name for name, _ in device.launched] == ["quantise_activations"]
    device.launched.clear()
    for i in range(5):
        bound.enqueue(i)
    place = next(i for i, a in enumerate(kernel.launches[0].arguments) if a.name == "weight")
    weights = [values[place] for _, values in device.launched]
    assert weights[:2] == weights[3:]
    assert len(set(weights)) == 3
    assert len({tuple(np.delete(values, place)) for _, values in device.launched}) == 1
    device.launched.clear()
    bound.enqueue_rounding(0)
    assert [name for name, _ in device.launched] == ["quantise_activations", "linear_1"]
    assert bound.launches(rounding=True) == 2
    assert bound.launches(rounding=False) == 1


@pytest.mark.parametrize("kind", ["F16", "Q4_0"])
def test_a_step_reads_what_it_is_said_to(kind):
    """Its nodes' weights and caches are the bytes that its limit is of; it launches few kernels."""
    device = Recorder()
    size = cases.FORMATS[kind].row_bytes
    block, launches = step.bound(device, step.Step(device, SMALL, kind).block_parts())
    assert launches == 9
    cold = [bound for bound in block if bound.cold]
    held = sum(of[0].bytes for bound in cold for n, of in bound.buffers.items() if n in bound.cold)
    total = SMALL.blocks * held + SMALL.vocab * size(SMALL.hidden) + 4 * SMALL.hidden
    assert step.Step(device, SMALL, kind).bytes == total
    assert [len(bound.cold) for bound in cold] == [1, 3, 2, 1, 1, 2, 1]  # 2: keys and values


def test_what_did_not_pass_is_not_measured():
    """The next best takes its place, if there is one."""
    case = cases.linear("GEMV", "BF16", 1, 64, 70)
    every = [kernel.name for kernel in kernels_for(case, Recorder(), ())]
    assert len(every) > 1
    rest = kernels_for(case, Recorder(), every[:1])
    assert [kernel.name for kernel in rest] == every[1:]
    used = step.Step(Recorder(), SMALL, "Q4_0").kernel("linear_trio", "Q4_0")
    broken = step.Step(Recorder(), SMALL, "Q4_0", frozenset([used.name]))
    with pytest.raises(LookupError, match="no kernel for linear_trio Q4_0 passed"):
        list(broken.block_parts())


def test_jobs_are_told_by_their_rows(monkeypatch):
    """The same whenever they are asked for; none makes its weights before it is run."""
    monkeypatch.setattr("bench.ops.workload.weight", None)
    models = {"tinyllama-1.1b": Path("a.gguf")}
    first, again = jobs(models), jobs(models)
    assert [job.row for job in first] == [job.row for job in again]
    assert len({job.row for job in first}) == len(first)


def raced(clock, **entries):
    """Samples of each contender, and why it is absent."""
    row = Measurement("gpu", "anything")
    found = {n: contender(clock, replace(row, contender=n), e) for n, e in entries.items()}
    return {row.contender: (row.samples, row.note) for row in Experiment(found).run(FEW)}


def test_those_who_fail_are_absent():
    """At the first try, which no race sees; the others take turns."""
    clock = Turns()

    def fails(_):
        raise MemoryError("2 GiB wanted\nand so on")

    assert raced(clock, a=lambda _: "a", b=fails, c="not installed", d=lambda _: "d") == {
        "a": ((1, 4, 5), ""), "d": ((2, 3, 6), ""), "b": ((), "2 GiB wanted"),
        "c": ((), "not installed"),
    }  # fmt: skip
    assert clock.asked == ["a", "d", "d", "a", "a", "d"]


def test_rows_say_how_near_to_the_limit(tmp_path):
    """And can be read again."""
    case = cases.linear("GEMV", "Q4_0", 1, 64, 70)
    limit = case.cost.bytes / CEILINGS.reading
    common = replace(row_of(case, CEILINGS), rivals="one race")
    ours = replace(common, variant="generic", samples=(2 * limit,) * 3)
    cublas = replace(common, contender="cuBLAS", samples=(4 * limit,) * 3)
    triton = replace(common, contender="Triton", note="no Triton")
    assert ours.share == pytest.approx(0.5)
    assert ours.limit == "read bandwidth"
    assert not replace(ours, samples=(limit / 1.04,) * 3).impossible
    assert replace(ours, samples=(limit / 1.1,) * 3).impossible
    (lost,) = of_op(case).failed("out of memory")
    assert (lost.contender, lost.note) == ("assay", "out of memory")
    results = Results(tmp_path, conditions(), {"gpu": CEILINGS.to_json()})
    results.add(ours, cublas, triton, lost)
    again = read(results.path)
    assert again.measurements == (ours, cublas, triton, lost)
    assert again.limits["gpu"]["bandwidth"] == CEILINGS.bandwidth
    assert peers_lines(again.measurements) == [
        f"GEMV Q4_0 {case.sizes}: cuBLAS 2.00, Triton absent (no Triton)"
    ]


def test_wrong_outputs_have_no_speed(monkeypatch):
    """Nor do they with activations rounded anew; the reason is in their rows."""
    case = cases.linear("GEMV", "Q4_0", 1, 64, 70)
    monkeypatch.setattr(bench.cuda.measure, "check", lambda *_: "out[0] is 3, expected 4")
    monkeypatch.setattr(bench.cuda.measure, "peers", lambda *_: {})
    found = measure(Recorder(), Turns(), CEILINGS, case, ())
    assert ROUNDING in {row.settings for row in found}
    assert {(row.samples, row.note, row.checked) for row in found} == {
        ((), "out[0] is 3, expected 4", 0)
    }


def gemv(hidden, out, **times):
    """Rows of ours, each variant so many times as slow as the limit."""
    common = row_of(cases.linear("GEMV", "Q8_0", 1, hidden, out), CEILINGS)
    limit = common.bytes / CEILINGS.reading
    return [
        replace(common, variant=name.partition("_")[0], samples=(limit * share,) * 3,
                settings=ROUNDING if "_" in name else "")
        for name, share in times.items()
    ]  # fmt: skip


def gemv_goal(wanted):
    return Goal("GEMV", wanted, partial(of_limit, "GEMV", "Q8_0"))


def test_a_goal_is_of_all_sizes_together_by_the_fastest_variants():
    found = gemv(64, 64, generic=2, tall=1.25, generic_rounding=1)
    assert gemv_goal(0.75).line(found, CEILINGS).startswith("GEMV: 80.0% (of the read bandwidth:")
    both = found + gemv(64, 640, generic=4)
    sizes = np.array([gemv(64, out, generic=1)[0].bytes for out in (64, 640)])
    share = sizes.sum() / (sizes * [1.25, 4]).sum()
    line = gemv_goal(0.75).line(both, CEILINGS)
    assert line.startswith(f"GEMV: {share:.1%} (of the read bandwidth: 80% at tokens=1,hidden=64,")
    assert line.endswith("goal >= 75.0%: missed")
    assert gemv_goal(0.2).line(both, CEILINGS).endswith("goal >= 20.0%: met")


def test_a_goal_without_figures_says_why():
    assert gemv_goal(0.5).line([], CEILINGS) == "GEMV: unmeasured (not reached); goal >= 50.0%"
    lost = of_op(cases.linear("GEMV", "Q8_0", 1, 64, 640)).failed("out of memory")
    line = gemv_goal(0.5).line([*gemv(64, 64, generic=1), *lost], CEILINGS)
    assert line == "GEMV: unmeasured (out of memory); goal >= 50.0%"
    for goal in GOALS:
        assert "unmeasured (not reached)" in goal.line([], CEILINGS)
    without = replace(CEILINGS, peak=0.0, lacks="there is no cuBLAS")
    prefill = next(goal for goal in GOALS if goal.what.startswith("prompts in F16"))
    assert "unmeasured (no matmul peak: there is no cuBLAS)" in prefill.line([], without)


def test_a_step_of_the_engine_counts_before_its_kernels():
    kernels = replace(
        gemv(64, 64, generic=1)[0], test="kernels of a step", model="tinyllama-1.1b",
        format="Q4_0", settings="context=512,launches=60", samples=(5e-4,) * 3,
    )  # fmt: skip
    engine = replace(kernels, test="engine", settings="", samples=(8e-4,) * 3)
    speed, overhead = (
        next(goal for goal in GOALS if word in goal.what)
        for word in ("shape of TinyLlama", "launches")
    )
    assert "2,000 tokens/s (kernels of a step" in speed.line([kernels], CEILINGS)
    assert "1,250 tokens/s (engine" in speed.line([kernels, engine], CEILINGS)
    line = overhead.line([kernels, engine], CEILINGS)
    assert line.endswith(
        "12.0% (of the step: 60 launches of 1.00 us in a graph); goal < 15.0%: met"
    )
