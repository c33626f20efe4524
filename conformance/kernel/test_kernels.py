"""Every kernel that this machine can run, before the judge, on cases that Hypothesis looks for."""

import time

import numpy as np
import pytest
from hypothesis import given

from conformance.conftest import DEEP
from conformance.kernel.here import HERE, ON_CPU, cases, inputs_of, run
from kernels.call import bind
from kernels.certificates import Store
from kernels.cuda.current import current
from kernels.judge import Candidate, Verdict, judge, replay
from kernels.kernel import Kernel
from kernels.shapes import ShapeError, empty_outputs
from kernels.trial import certificate_of
from reference.op import Case, Op
from reference.table import OPS

every_op = pytest.mark.parametrize("op", OPS.values(), ids=OPS.keys())
every_kernel = pytest.mark.parametrize("kernel", HERE, ids=[k.name for k in HERE])


def first_format(op: Op) -> str | None:
    return op.formats[0] if op.formats else None


@every_kernel
def test_hypothesis_finds_no_case_beyond_the_bound(kernel, record_property):
    """No case of its op takes a kernel beyond the derived bound, or out of its memory."""
    candidate, started = Candidate.of(kernel), time.perf_counter()
    quick = kernel.spec.quick_cases(kernel.format)
    verdicts = [judge(candidate, case) for case in quick if kernel.takes(case.shape)]

    def check(verdict: Verdict) -> None:
        assert verdict.passed, f"{verdict.failure}\nagain: {replay(kernel.name, verdict.case)}"

    @given(cases(kernel).filter(lambda case: kernel.takes(case.shape)))
    def explore(case: Case) -> None:
        verdicts.append(judge(candidate, case))
        check(verdicts[-1])

    def finish() -> None:  # not when interrupted: a trial cut short proves nothing
        record_property("judged", (kernel.name, len(verdicts)))
        if DEEP:
            emulated = kernel.target == "cuda" and current().emulated
            level = "emulated" if emulated else "deep"
            Store().add([certificate_of(kernel, verdicts, level, started)])

    try:
        for verdict in verdicts:
            check(verdict)
        explore()
    except AssertionError:
        finish()
        raise
    finish()


@pytest.mark.parametrize("kernel", ON_CPU, ids=[k.name for k in ON_CPU])
@pytest.mark.parametrize("n_threads", [2, 5, 64])
def test_shares_of_any_number_of_threads_make_one_result(kernel, n_threads):
    """However many threads share the work, and whichever comes first, no bit changes. (A GPU's work
    is not for us to share; the judge runs it twice, the emulator in the reverse order once.)"""
    op = kernel.spec
    taken = [c for c in op.quick_cases(kernel.format) if kernel.takes(c.shape)]
    case = max(taken, key=lambda c: op.cost(c.shape, c.format).bytes)
    order = np.random.default_rng(n_threads).permutation(n_threads).tolist()
    results = []
    for threads, turns in ((1, [0]), (n_threads, order)):
        outputs = empty_outputs(op, case.shape, case.format)
        bind(kernel, op.make(case), outputs)(threads, turns)
        results.append([out.tobytes() for out in outputs.values()])
    assert results[0] == results[1], replay(kernel.name, case)


@every_kernel
def test_calls_name_the_op_and_the_argument_they_refuse(kernel):
    """A missing, wrongly typed or strided argument is refused by name, never read."""
    inputs = inputs_of(kernel)
    for argument in (a for a in kernel.spec.inputs if a.axes):
        value = inputs[argument.name]
        wrong = value.astype(np.complex64)
        strided = np.repeat(value, 2, axis=-1)[..., ::2]
        for broken in (wrong, strided):
            if broken is strided and value.size == 1:
                continue  # a single element has no stride
            with pytest.raises(ShapeError, match=rf"{kernel.op}: {argument.name} "):
                run(kernel, **{**inputs, argument.name: broken})
        del inputs[argument.name]
        with pytest.raises(ShapeError, match=f"{kernel.op}: argument {argument.name} is missing"):
            run(kernel, **inputs)
        inputs[argument.name] = value


@every_op
def test_cases_are_functions_of_their_seed(op):
    """The same case always gives the same arguments, and another seed gives others."""

    def arguments(seed: int) -> list[bytes]:
        made = op.make(op.case({}, op.values[0], seed, first_format(op)))
        return [np.asarray(value).tobytes() for value in made.values()]

    assert arguments(1) == arguments(1)
    assert arguments(1) != arguments(2)


@every_op
def test_references_say_what_they_take_and_give(op):
    """A reference's docstring states its shapes, or names the sibling that does."""
    text = op.reference.__doc__ or ""
    assert "->" in text or "shapes as for" in text, f"{op.name}: no shapes in its docstring"


@every_op
def test_costs_grow_with_the_work(op):
    """The least bytes and operations of a call are finite, and no larger for less work."""
    kind = first_format(op)
    large = op.case({}, op.values[0], format=kind).shape
    rows = next(iter(op.axes))
    small = op.case({**large, rows: 1}, op.values[0], format=kind).shape
    least, most = op.cost(small, kind), op.cost(large, kind)
    assert 0 < least.bytes <= most.bytes < np.inf
    assert 0 <= least.operations <= most.operations < np.inf


def test_replay_commands_name_the_whole_case():
    """The printed command holds variant, format, every size, values and seed."""
    kernel = Kernel("linear", "scalar", None, "Q4_0")  # type: ignore[arg-type]
    case = OPS["linear"].case({"tokens": 2, "hidden": 64, "out": 5}, "spiky", 7, "Q4_0")
    assert replay(kernel.name, case) == (
        "assay op linear --variant scalar --format Q4_0 --shape tokens=2,hidden=64,out=5"
        " --values spiky --seed 7"
    )
