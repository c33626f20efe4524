"""Every kernel that runs on this machine, judged on cases that Hypothesis searches."""

import secrets
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from conformance.support.depth import DEEP
from conformance.support.machine_kernels import HERE, cases, inputs_of, run
from kernels.call import emulated
from kernels.certificates import Store
from kernels.cuda.runtime.device import EMULATED
from kernels.judge import judge, replay
from kernels.kernel import Kernel
from kernels.shapes import ShapeError
from kernels.trial import CASES, Request, Tried, attempt, certificate_of, held, law_cases, laws_of
from reference.op import Case, Op
from reference.table import OPS

# That the judge makes of a case, on two kinds of data; and quick trials, which compile, draw fewer
RUNS = 8 if settings.default.derandomize else 4
every_op = pytest.mark.parametrize("op", OPS.values(), ids=OPS.keys())
every_kernel = pytest.mark.parametrize("kernel", HERE, ids=[k.name for k in HERE])


def first_format(op: Op) -> str | None:
    return op.formats[0] if op.formats else None


@every_kernel
def test_hypothesis_finds_no_case_beyond_the_bound(kernel, record_property):
    """No case of its op exceeds the derived bound, or accesses memory out of bounds."""
    request, secret = Request(kernel.name), secrets.randbits(31)
    started, attempts = time.perf_counter(), list(attempt(kernel, request, secret))

    def check(tried: Tried) -> None:
        assert tried.verdict.passed, f"{tried.verdict.failure}\nagain: {tried.again}"

    @settings(settings.default, max_examples=settings.default.max_examples // RUNS)
    @given(cases(kernel).filter(lambda case: kernel.takes(case.shape)))
    def explore(case: Case) -> None:
        again = replay(kernel.name, case, secret)
        attempts.append(Tried(CASES, judge(kernel, case, secret), again))
        check(attempts[-1])

    def finish() -> None:  # not when interrupted: a trial cut short proves nothing
        record_property("judged", (kernel.name, len(attempts)))
        level = EMULATED if emulated(kernel) else "deep" if DEEP else request.level
        # kept, so that the engine's tests need not try it again
        Store().add([certificate_of(kernel, attempts, replace(request, level=level), started)])

    try:
        for tried in attempts:
            check(tried)
        explore()
    except AssertionError:
        finish()
        raise
    finish()


LAWS = [(kernel, law) for kernel in HERE for law in laws_of(kernel)]


@pytest.mark.parametrize(("kernel", "law"), LAWS, ids=[f"{k.name}:{w.name}" for k, w in LAWS])
def test_every_law_holds(kernel, law):
    """Each law of its op, at small sizes; in deep runs at random ones."""
    for seed in range(20 if DEEP else 1):
        for case in law_cases(kernel, seed):
            verdict = held(kernel, law, case)
            assert verdict.passed, f"{verdict.failure}\nagain: {replay(kernel.name, case)}"


@every_kernel
def test_refused_arguments_are_named(kernel):
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
def test_cases_are_determined_by_their_seed(op):
    """The same case always gives the same arguments, and another seed gives others."""

    def arguments(seed: int) -> list[bytes]:
        made = op.make(op.case({}, op.values[0], seed, first_format(op)))
        return [np.asarray(value).tobytes() for value in made.values()]

    assert arguments(1) == arguments(1)
    assert arguments(1) != arguments(2)


@every_op
def test_reference_docstrings_state_shapes(op):
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
    kernel = Kernel("linear", "scalar", None, "Q4_0")
    case = OPS["linear"].case({"tokens": 2, "hidden": 64, "out": 5}, "spiky", 7, "Q4_0")
    assert replay(kernel.name, case) == (
        "assay op linear --variant scalar --format Q4_0 --shape tokens=2,hidden=64,out=5"
        " --values spiky --seed 7"
    )
