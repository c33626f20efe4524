"""The judge: tries a kernel on one case of its op and decides whether it passes.

A case is run as the engine runs kernels, and harder: by one thread, twice; again in the same memory
with other data, by a team of real threads, several times; each thread alone, to show that writes
are disjoint and complete; and at another place in memory. Outputs begin as NaN, inputs and packed
weights are read-only, inaccessible pages surround every array, scratch may not count runs, and
rounding modes may not be left changed. Fill values and placement follow from a `secret` that no
kernel can know. Kernels on rounded activations are judged twice: tightly against the product of
those same activations, and against the float product with the rounding step added.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from kernels.call import AnyKernel, bind
from kernels.cuda.runtime.kernel import CudaKernel
from kernels.errors import KernelError
from kernels.guard import AT_END, Guarded
from kernels.kernel import Kernel
from kernels.runs import Setup, differing, side_by_side
from kernels.shapes import ShapeError, sizes
from reference.op import DTYPES, Arguments, Array, Case, Op, size_of
from reference.values import NOT_FINITE

FLOAT32_ENDS = 2.0**128 - 2.0**103  # from here on the nearest float32 is an infinity
PLACES = (0, AT_END, 4, 64, 16)  # placements of arrays in their pages
MOST_THREADS, FEW_THREADS = 16, 5  # threads at once, in some cases and in the others
SMALL_WORK, SMALL_BYTES = 2**21, 2**24  # of a case that is run in every way there is


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one case: the worst |error| / bound (at most 1 to pass), and the NMSE."""

    case: Case
    worst: float = 0.0
    nmse: float = 0.0
    failure: str = ""

    @property
    def passed(self) -> bool:
        return not self.failure


class Judged(Protocol):
    """What the judge needs to know of the producer of some outputs."""

    @property
    def spec(self) -> Op:
        """The op."""

    @property
    def activations(self) -> str:
        """How it rounds its inputs, which selects the bound."""


def judge(kernel: AnyKernel, case: Case, secret: int = 0) -> Verdict:
    """Try one case; the first thing found wrong is the failure."""
    rng = np.random.default_rng([secret, case.seed, *case.shape.values()])
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            if isinstance(kernel, CudaKernel):
                return _on_device(kernel, case, rng)
            return _on_cpu(kernel, case, rng, (secret + case.seed) % len(PLACES))
    except KernelError as fault:
        return Verdict(case, np.inf, np.inf, str(fault))


def _on_cpu(kernel: Kernel, case: Case, rng: np.random.Generator, turn: int) -> Verdict:
    inputs, cost = _made(kernel.spec, case), kernel.spec.cost(case.shape, case.format)
    held = sum(value.nbytes for value in inputs.values() if isinstance(value, np.ndarray))
    small = cost.bytes + cost.operations <= SMALL_WORK and held <= SMALL_BYTES
    tuning = {knob.name: int(rng.choice(knob.values)) for knob in kernel.knobs}
    setup = Setup(kernel, case, inputs, PLACES[turn], rng, tuning)
    first = setup.run(1)
    verdict = compare(kernel, case, inputs, first)
    if not verdict.passed:
        return verdict
    if small:
        setup.run_again(first)
        other = replace(case, seed=case.seed + int(rng.integers(1, 2**31)))
        setup.fill(_made(kernel.spec, other), other)
    most = MOST_THREADS if turn == 0 else FEW_THREADS
    again = setup.run_team(int(rng.integers(2, most + 1)))
    if small:
        verdict = _worse(verdict, compare(kernel, other, setup.inputs, again), "a second call: ")
        setup.fill(inputs, case)
        setup.run_apart(int(rng.integers(2, MOST_THREADS + 1)), first)
    elif differing(first, again):
        raise KernelError(f"{differing(first, again)} differs between one thread and several")
    if small:
        place = PLACES[(turn + 1) % len(PLACES)]
        moved = Setup(kernel, case, inputs, place, rng, tuning)
        if name := differing(first, moved.run(1)):
            raise KernelError(f"{name} differs where arrays lie elsewhere in memory")
        if name := differing(first, side_by_side(kernel, case, inputs, rng, tuning)):
            raise KernelError(f"{name} differs where arrays lie side by side in memory")
    return verdict


def _made(op: Op, case: Case) -> Arguments:
    """A case's arguments, checked against the op's signature: a mismatch is not the kernel's
    fault."""
    inputs = op.make(case)
    for axis, size in sizes(op, inputs, case.format).items():
        if size != (asked := case.shape.get(axis, size)):
            raise ShapeError(f"{op.name}: make gives {axis} = {size}, not {asked}")
    return inputs


def _worse(verdict: Verdict, other: Verdict, when: str) -> Verdict:
    """Merge two verdicts on one case: the failure, if there is one, and the larger figures."""
    failure = other.failure and when + other.failure
    worst, nmse = max(verdict.worst, other.worst), max(verdict.nmse, other.nmse)
    return Verdict(verdict.case, worst, nmse, failure)


def _on_device(kernel: CudaKernel, case: Case, rng: np.random.Generator) -> Verdict:
    """The same for a GPU kernel, as far as the host can check: it runs twice, in memory pre-filled
    with NaN between canaries, and must leave its inputs alone."""
    inputs = _made(kernel.spec, case)
    arrays = {name: value for name, value in inputs.items() if isinstance(value, np.ndarray)}
    for value in arrays.values():
        value.flags.writeable = False
    before = {name: value.copy() for name, value in arrays.items()}
    found = []
    for order in ((0,), (2, 1, 0)):
        results = {
            o.name: Guarded(
                o.dims(case.shape, case.format), DTYPES.get(o.dtype, np.uint8), AT_END, rng
            )
            for o in kernel.spec.outputs
        }
        for result in results.values():
            result.poison(rng)
        outputs = {name: result.array for name, result in results.items()}
        bind(kernel, inputs, outputs)(len(order), order)
        found.append(outputs)
    if name := differing(before, arrays):
        raise KernelError(f"input {name} was written to")
    if name := differing(*found):
        raise KernelError(f"{name} differs between two runs")
    return compare(kernel, case, inputs, found[0])


def compare(kernel: Judged, case: Case, inputs: Arguments, outputs: Mapping[str, Array]) -> Verdict:
    """Compare a kernel's outputs for these inputs with the reference, within the op's bound."""
    op = kernel.spec
    with np.errstate(over="ignore", invalid="ignore"):
        inputs, outputs, rest = _sampled(op, case, inputs, outputs)
        if rest:
            return Verdict(case, np.inf, np.inf, rest)
        expected = op.expected(inputs)
        _fits(op, "reference", expected, outputs)
        if kernel.activations not in op.rounded:
            bounds = op.bounds.get(kernel.activations, op.bound)(inputs, expected)
            _fits(op, "bound", bounds, outputs)
            return _judged(case, outputs, expected, bounds, op.also(inputs, expected))
        if case.values in NOT_FINITE:
            return _contained(case, inputs[op.inputs[0].name], outputs["out"], expected["out"])
        exact, tight, step = op.rounded[kernel.activations](inputs)
        verdict = _judged(case, outputs, op.expected(exact), {"out": tight})
        if not verdict.passed:
            return verdict
        quality = _judged(case, outputs, expected, {"out": tight + step})
        return Verdict(case, verdict.worst, quality.nmse, quality.failure)


def _fits(op: Op, what: str, found: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
    """Whether an op's bound or alternatives have the outputs' shapes."""
    for name, output in outputs.items():
        got = np.shape(found[name]) if name in found else "nothing"
        if got != output.shape:
            raise ShapeError(f"{op.name}: its {what} gives {got} for {name}, not {output.shape}")


def _sampled(
    op: Op, case: Case, inputs: Arguments, outputs: Mapping[str, Array]
) -> tuple[Arguments, Mapping[str, Array], str]:
    """Inputs and outputs restricted to the nonzero rows of a large weight, and a complaint about
    the other outputs, which must be zero where the reference of a row of zeros is finite."""
    weight = next((a for a in op.inputs if a.axes[:1] == (op.separate,)), None)
    if not op.separate or weight is None:
        return inputs, outputs, ""
    rows, elements = (size_of(axis, case.shape) for axis in weight.axes)
    chosen = case.sampled(rows, elements)
    if len(chosen) == rows:
        return inputs, outputs, ""
    nothing = np.setdiff1d(np.arange(rows), chosen)[:1]
    of_zeros = op.expected({**inputs, weight.name: inputs[weight.name][nothing]})
    inputs = {**inputs, weight.name: inputs[weight.name][chosen]}
    found = {}
    for output in op.outputs:
        axis = output.axes.index(op.separate)
        found[output.name] = np.take(outputs[output.name], chosen, axis)
        others = np.delete(outputs[output.name], chosen, axis)
        if ((others != 0) & np.isfinite(of_zeros[output.name])).any():
            return inputs, found, f"{output.name}: rows of zeros gave other than zeros"
    return inputs, found, ""


def _contained(case: Case, x: Array, got: Array, want: Array) -> Verdict:
    """For a kernel that rounds x, the op's first input: tokens with infinities or NaN must be
    non-finite where the reference is; other tokens are judged by other cases."""
    strange = ~np.isfinite(x).reshape(len(x), -1).all(axis=1)
    failure = ""
    if np.isfinite(got[strange][~np.isfinite(want[strange])]).any():
        failure = "out is finite where the reference is infinite or NaN"
    elif not np.isfinite(got[~strange][np.isfinite(want[~strange])]).all():
        failure = "out is not finite in a token whose inputs are, where the reference is"
    return Verdict(case, np.inf if failure else 0.0, np.inf if failure else 0.0, failure)


def _judged(
    case: Case,
    outputs: Mapping[str, Array],
    expected: dict[str, Array],
    bounds: dict[str, Array],
    also: Mapping[str, Array] | None = None,
) -> Verdict:
    worst = nmse = 0.0
    for name, want in expected.items():
        got, bound = outputs[name].astype(np.float64), np.asarray(bounds[name], np.float64)
        want = want.astype(np.float64)
        if outputs[name].dtype == np.float32:
            # within the bound of float32's largest number an infinity is accepted
            beyond = np.isinf(got) & (np.abs(want) + bound >= FLOAT32_ENDS)
            want = np.where(beyond & (np.sign(got) == np.sign(want)), got, want)
            want = np.where(np.abs(want) - bound >= FLOAT32_ENDS, np.copysign(np.inf, want), want)
        error = np.where((got == want) | (np.isnan(got) & np.isnan(want)), 0, np.abs(got - want))
        for other in (also or {}).get(name, ()):
            error = np.where(got == other, 0, error)
        # also where got, want or its bound alone is NaN, or a bound is infinite like want
        bad = ~((error <= bound) & np.isfinite(want) | (error == 0))
        ratio = np.where(error == 0, 0, error / np.where(bound > 0, bound, np.nan))
        if bad.any():
            at = tuple(int(i) for i in np.argwhere(bad)[0])
            limit = f"{bound[at]:.3g}" if bound[at] else "0 (exact)"
            failure = (
                f"{name}{list(at)} is {got[at]:.9g}, expected {want[at]:.9g}: off by"
                f" {error[at]:.3g}, bound {limit}; {bad.sum()} of {bad.size} wrong"
            )
            ratio = np.where(np.isnan(ratio), np.inf, ratio)
            return Verdict(case, float(ratio.max()), np.inf, failure)
        if got.size:
            worst = max(worst, float(ratio.max()))
            finite = np.isfinite(want)
            power = float(np.sum(want[finite] ** 2))
            nmse = max(nmse, float(np.sum(error[finite] ** 2)) / power if power else 0.0)
    return Verdict(case, worst, nmse)


def replay(kernel: str, case: Case, secret: int = 0) -> str:
    """The command that repeats a case on a kernel, given by name."""
    op, target, variant, *_ = kernel.split("/")
    program = "python -m conformance.cuda.op" if target == "cuda" else "assay op"
    said = f" --secret {secret}" if secret else ""
    return f"{program} {op} --variant {variant} {case.describe()}{said}"
