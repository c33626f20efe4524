"""A timed kernel is still checked, and its calls have the stated properties."""

import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from bench.ops.cases import BenchCase
from bench.ops.op_run import CHECK_EVERY, SETS, Lab, OpRun, TooMuchError, WrongOutputError
from bench.ops.workload import Workload
from bench.race.benchmarking import Recorder
from bench.race.experiment import Experiment, Rule
from bench.race.results import read
from bench.tests.support.synthetic import CONDITIONS, THREADS, VAST
from kernels.cpu.runtime.team import Team
from kernels.table import find

SIZES = {
    "rms_norm": {"tokens": 4, "hidden": 96},
    "add": {"tokens": 4, "width": 96},
    "relu": {"tokens": 4, "width": 96},
    "linear": {"tokens": 4, "hidden": 64, "out": 96},
}
PLAIN = ("rms_norm/cpu/generic", "add/cpu/generic")
PACKED = ("linear/cpu/generic/F16", "linear/cpu/generic/Q4_0")


@pytest.fixture(name="lab")
def _lab():
    with Team(THREADS) as team:
        yield Lab(team, VAST)


def work(name, **sizes):
    kernel = find(name)
    return Workload.of(BenchCase(kernel, SIZES[kernel.op] | sizes, ()))


def watch(lab, monkeypatch, see):
    """Call `see` before the team runs anything."""
    real = lab.team.run
    monkeypatch.setattr(lab.team, "run", lambda program: (see(program), real(program))[1])


def test_a_wrong_kernel_is_caught(lab):
    """Another op's code in a kernel's place gives wrong outputs, and the first sample says so."""
    impostor = replace(find("relu/cpu/generic"), share=find("squared_relu/cpu/generic").share)
    for cache in ("hot", "cold"):
        run = OpRun(lab, Workload.of(BenchCase(impostor, SIZES["relu"], ())), cache)
        with pytest.raises(WrongOutputError, match=r"\Arelu/cpu/generic tokens=4,width=96: out"):
            run()


def test_a_kernel_that_goes_wrong_is_caught(lab, monkeypatch):
    """One that stops working after a while leaves poisoned outputs, for any inputs."""
    for cache in ("hot", "cold"):
        run = OpRun(lab, work("add/cpu/generic"), cache)
        for _ in range(3):
            run()
        with monkeypatch.context() as patch:
            patch.setattr(lab.team, "run", lambda _: None)
            with pytest.raises(WrongOutputError, match="out"):
                [run() for _ in range(CHECK_EVERY)]


@pytest.mark.parametrize("cache", ["hot", "cold"])
def test_every_set_of_inputs_gets_checked(lab, cache):
    """Over time all sets of inputs have their outputs checked, not the first alone."""
    run = OpRun(lab, work("add/cpu/generic"), cache)
    seen, real = set(), run.check
    run.check = lambda bound: (seen.add(id(bound)), real(bound))[1]
    sets = min(SETS, len(run._bounds))
    for _ in range(CHECK_EVERY * SETS):
        run()
    assert len(seen) >= sets


@pytest.mark.parametrize("cache", ["hot", "cold"])
def test_outputs_are_spoilt_first(lab, monkeypatch, cache):
    """Before the clock starts, a sample's outputs are filled with NaN."""
    run = OpRun(lab, work("add/cpu/generic"), cache)
    spoilt = []

    def see(program):
        bound = run._bounds[run.taken % len(run._bounds)]
        spoilt.append(all(np.isnan(out).all() for out in bound.outputs.values()))

    watch(lab, monkeypatch, see)
    for _ in range(5):
        spoilt.clear()
        run()
        assert spoilt[-1]


@pytest.mark.parametrize("name", PLAIN + PACKED)
@pytest.mark.parametrize("cache", ["hot", "cold"])
def test_inputs_change_from_sample_to_sample(lab, monkeypatch, cache, name):
    """No sample has the activations of the one before, even where a sample is one call."""
    monkeypatch.setattr("bench.ops.op_run.SAMPLE_SECONDS", 1e-9)
    run = OpRun(lab, work(name), cache)
    assert run.calls == 1
    seen, real = [], run._time

    def timed(program):
        bound = run._bounds[run.taken % len(run._bounds)]
        seen.append((bound.inputs.get("x", bound.inputs.get("a"))).tobytes())
        return real(program)

    run._time = timed
    for _ in range(2 * CHECK_EVERY):
        run()
    assert all(a != b for a, b in pairwise(seen))


@pytest.mark.parametrize("name", PLAIN + PACKED)
def test_cold_calls_have_memory_of_their_own(lab, monkeypatch, name):
    """The copies of cold calls share no array, packed weights included, and differ in numbers."""
    monkeypatch.setattr("bench.ops.op_run.SAMPLE_SECONDS", 0.1)  # many calls, however slow they are
    run = OpRun(lab, work(name), "cold")
    assert len(run._bounds) == run.calls > 3
    arrays = [
        value
        for bound in run._bounds
        for key, value in {**bound.memory[0], **bound.outputs}.items()
        if isinstance(value, np.ndarray)
    ]
    spans = sorted((a.ctypes.data, a.ctypes.data + a.nbytes) for a in arrays)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    first = [next(iter(bound.inputs.values())) for bound in run._bounds]
    assert not np.array_equal(first[0], first[1])


@pytest.mark.parametrize("name", PACKED)
def test_hot_calls_share_a_weight(lab, name):
    """Hot calls find one weight in the caches, whatever their inputs."""
    run = OpRun(lab, work(name), "hot")
    assert len(run._bounds) == SETS
    assert len({bound.memory[0]["weight"].ctypes.data for bound in run._bounds}) == 1
    assert len({bound.inputs["x"].ctypes.data for bound in run._bounds}) == SETS


def test_caches_are_swept_before_cold_samples_alone(lab, monkeypatch):
    """Between cold samples more is read than the largest cache holds; hot ones are left alone."""
    swept = []
    monkeypatch.setattr(Lab, "sweep", lambda _: swept.append(1))
    assert lab._swept["x"].nbytes >= 4 * VAST.last_level()
    for cache, count in (("hot", 0), ("cold", 3)):
        run = OpRun(lab, work("add/cpu/generic"), cache)
        swept.clear()
        for _ in range(3):
            run()
        assert len(swept) == count


def test_a_sample_is_the_time_of_one_call(lab, monkeypatch):
    """A planted delay is measured, for any number of calls in a sample."""
    run = OpRun(lab, work("add/cpu/generic"), "hot")
    real = lab.team.run
    monkeypatch.setattr(lab.team, "run", lambda program: (time.sleep(0.02), real(program)))
    assert run() == pytest.approx(0.02 / run.calls, rel=0.5)


def test_what_is_too_much_is_told(lab, monkeypatch):
    """No more memory is allocated than there is, and no call exceeds the time limit."""
    for vast in ({"tokens": 2**31 - 1}, {"hidden": 2**31 - 1, "out": 2**31 - 1, "tokens": 2**30}):
        with pytest.raises(TooMuchError, match=r"needs about \S+ GB, \S+ GB are free"):
            OpRun(lab, work("linear/cpu/generic/F16", **vast), "hot")
    enough = {"tokens": 64, "width": 1024}
    OpRun(lab, work("add/cpu/generic", **enough), "hot")
    lab.most_seconds = 1e-12
    with pytest.raises(TooMuchError, match=r"a call would take about \S+ s, over the cap of 1e-12"):
        OpRun(lab, work("add/cpu/generic", **enough), "hot")
    for _ in range(2):  # nothing is known of it yet, and a call this small tells nothing
        OpRun(lab, work("rms_norm/cpu/generic"), "hot")


def test_a_row_says_what_was_run(lab):
    """A measurement has its kernel, size, threads, cost, limit, samples and checks."""
    bench = BenchCase(find("linear/cpu/generic/Q8_0"), SIZES["linear"], ("a", "b"))
    run = OpRun(lab, Workload.of(bench), "cold")
    row = run.limited(*Experiment({"assay": run.contender()}).run(Rule(least=3, most=3)))
    assert (row.bench, row.test, row.variant, row.format) == ("op", "linear", "generic", "Q8_0")
    assert (row.shape, row.model) == ("tokens=4,hidden=64,out=96", "a, b")
    assert (row.threads, row.cache, row.checked) == (THREADS, "cold", 1)
    assert len(row.samples) == 3
    cost = bench.kernel.spec.cost(bench.shape, "Q8_0")
    assert (row.bytes, row.operations) == (cost.bytes, cost.operations)
    assert row.limit == "memory read"
    assert row.limit_seconds == pytest.approx(cost.bytes / 1e15)
    assert len(row.kernel) == 16
    peer = run.row("numpy")
    assert (peer.contender, peer.variant, peer.kernel, peer.checked) == ("numpy", "", "", 0)


@pytest.fixture(name="recorder")
def _recorder(tmp_path):
    return Recorder(tmp_path, CONDITIONS, VAST)


def test_the_impossible_fails_and_is_kept(lab, recorder):
    """Faster than the machine: the benchmark fails by name; the row is kept, with a note."""
    run = OpRun(lab, work("add/cpu/generic"), "hot")
    with pytest.raises(pytest.fail.Exception, match=r"add/cpu/generic .*% of the limit"):
        recorder.add(*(run.limited(replace(run.row(), samples=(s,) * 5)) for s in (1e-30, 1.0)))
    first, second = read(recorder.results.path).measurements
    assert "its cost or the clock is wrong" in first.note
    assert first.samples == (1e-30,) * 5
    assert not second.note
    assert len(recorder.rejected) == 1
