"""Every op in every variant and format, at the sizes of real models, on cold and on hot caches."""

import pytest

from bench.benchmarking import measure
from bench.op_run import OpRun, TooMuchError
from bench.workload import Workload


def test_op(benchmark, lab, plan, recorder, case, cache):
    """A kernel gives what its reference says, and takes this long."""
    try:
        run = OpRun(lab, Workload.of(case), cache)
    except TooMuchError as error:
        pytest.skip(str(error))
    benchmark.group = case.kernel.op
    samples = measure(benchmark, {"assay": run}, plan.rule)["assay"]
    if plan.measuring:
        recorder.add(run.measurement(samples))
