"""Every op in every variant and format, at the sizes of real models, on cold and on hot caches."""

from functools import partial

import pytest

from bench.ops import matmul
from bench.ops.op_run import OpRun, TooMuchError
from bench.ops.workload import Workload
from bench.packages import lacking
from bench.race.benchmarking import measure
from bench.race.experiment import Contender, Experiment, timed

RACED_BYTES = 2**28  # of a call: beyond that, three copies of a weight take their time


@pytest.fixture(scope="session")
def peers(plan):
    """Who else multiplies float32 matrices here; nobody is asked unless it is timed."""
    if not plan.measuring:
        yield {}
        return
    with matmul.matmuls(plan.threads) as found:
        yield found


def test_op(benchmark, lab, plan, recorder, peers, case, cache):
    """A kernel gives what its reference says, and takes this long."""
    try:
        run = OpRun(lab, Workload.of(case), cache)
    except TooMuchError as error:
        pytest.skip(str(error))
    benchmark.group = case.kernel.op
    contenders = {"assay": run.contender()}
    if case.kernel.name == "linear/cpu/generic/F32" and run.work.cost.bytes < RACED_BYTES:
        for name, peer in peers.items():
            seconds = matmul.sampler(peer, case.shape, run.copies, run.calls)
            contenders[name] = Contender(run.row(name), timed(seconds))
        for name in lacking(matmul.LIBRARIES):
            contenders[name] = Contender(run.row(name), absent=f"{name} is not installed")
    found = Experiment(contenders).run(plan.rule, partial(measure, benchmark))
    if not plan.measuring:
        return
    if any(run.limited(row).impossible for row in found) and lab.probe_again():
        recorder.raise_limits(lab.limits)
    recorder.add(*map(run.limited, found))
