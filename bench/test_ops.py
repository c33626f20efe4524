"""Every op in every variant and format, at the sizes of real models, on cold and on hot caches."""

import secrets

import pytest

from bench import matmul
from bench.benchmarking import measure
from bench.op_run import OpRun, TooMuchError
from bench.workload import Workload

RACED_BYTES = 2**28  # of a call: beyond that, three copies of a weight take their time


@pytest.fixture(scope="session")
def peers(plan):
    """Who else multiplies float32 matrices here; nobody is asked unless it is timed."""
    if not plan.measuring:
        yield []
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
    contenders = {"assay": run}
    raced = case.kernel.name == "linear/cpu/generic/F32" and run.work.cost.bytes < RACED_BYTES
    if raced:
        for peer in peers:
            contenders[peer.name] = peer.sampler(case.shape, run.copies, run.calls)
    samples = measure(benchmark, contenders, plan.rule)
    if not plan.measuring:
        return
    rivals = secrets.token_hex(4) if raced else ""

    def rows():
        taken = [run.measurement(some, name, rivals) for name, some in samples.items()]
        missing = matmul.absent() if raced else ()
        return taken + [run.measurement((), name, rivals, why) for name, why in missing]

    found = rows()
    if any(row.impossible for row in found) and lab.probe_again():
        recorder.raise_limits(lab.limits)
        found = rows()
    recorder.add(*found)
