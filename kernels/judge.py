"""The judge: tries a candidate on one case of its op and says whether it may pass.

Outputs start as NaN between canaries, inputs are read-only and compared afterwards, and every case
runs again with three threads' shares in reverse order, which must not change a bit. Kernels on
rounded activations are judged twice: tightly against the product of those same activations, and
against the float product with the rounding step added.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from kernels.call import AnyKernel, Run, bind
from kernels.errors import KernelError
from kernels.guard import at_page_end
from reference.op import DTYPES, Arguments, Array, Case, Op, size_of
from reference.values import NOT_FINITE

CANARY = 0xA5
FLOAT32_ENDS = 2.0**128 - 2.0**103  # from here on the nearest float32 is an infinity
MARGIN = 72  # bytes on each side; not a multiple of a vector, so that outputs are unaligned


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one case showed: the worst |error| / bound (at most 1 to pass), and the NMSE."""

    case: Case
    worst: float = 0.0
    nmse: float = 0.0
    failure: str = ""

    @property
    def passed(self) -> bool:
        return not self.failure


@dataclass(frozen=True, slots=True)
class Candidate:
    """Anything that can be judged: a kernel, or a deliberately wrong one."""

    name: str
    op: Op
    bind: Callable[[Arguments, Mapping[str, Array]], Run]
    activations: str = "float32"
    splits: str = ""

    @classmethod
    def of(cls, kernel: AnyKernel) -> "Candidate":
        def bound(inputs: Arguments, outputs: Mapping[str, Array]) -> Run:
            return bind(kernel, inputs, outputs)

        return cls(kernel.name, kernel.spec, bound, kernel.activations, kernel.splits)


def judge(candidate: Candidate, case: Case, guarded: bool = False) -> Verdict:
    """Try one case; the first thing found wrong is the failure.

    With `guarded`, inputs end where memory does, so that reading beyond them crashes: for trials in
    a child process.
    """
    op = candidate.op
    inputs = op.make(case)
    if guarded:
        inputs = {
            name: at_page_end(value) if isinstance(value, np.ndarray) else value
            for name, value in inputs.items()
        }
    for value in inputs.values():
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
    before = {name: np.copy(value) for name, value in inputs.items()}

    first, broken = _run(candidate, case, inputs, 1, (0,))
    again, broken_again = _run(candidate, case, inputs, 3, (2, 1, 0))
    if broken or broken_again:
        return Verdict(case, np.inf, np.inf, broken or broken_again)
    for name, value in inputs.items():
        if not _same_bits(np.asarray(value), before[name]):
            return Verdict(case, np.inf, np.inf, f"input {name} was written to")
    for name in first:
        if not _same_bits(first[name], again[name]):
            return Verdict(case, np.inf, np.inf, f"{name} differs between one thread and three")
    if candidate.splits and (strayed := _strays(candidate, case, inputs, first)):
        return Verdict(case, np.inf, np.inf, strayed)
    return compare(candidate, case, inputs, first)


def _run(
    candidate: Candidate, case: Case, inputs: Arguments, n_threads: int, order: tuple[int, ...]
) -> tuple[dict[str, Array], str]:
    """Outputs of one run, and what was found broken around them."""
    buffers, outputs = {}, {}
    for o in candidate.op.outputs:
        dims = o.dims(case.shape, case.format)
        dtype = np.dtype(DTYPES.get(o.dtype, np.uint8))
        size = int(np.prod(dims)) * dtype.itemsize
        buffer = np.full(size + 2 * MARGIN, CANARY, np.uint8)
        buffer[MARGIN : MARGIN + size] = 0xFF  # NaN as a float, -1 as an integer
        buffers[o.name] = buffer
        outputs[o.name] = buffer[MARGIN : MARGIN + size].view(dtype).reshape(dims)
    try:
        candidate.bind(inputs, outputs)(n_threads, order)
    except KernelError as fault:
        return outputs, str(fault)
    for name, buffer in buffers.items():
        if np.any(buffer[:MARGIN] != CANARY) or np.any(buffer[-MARGIN:] != CANARY):
            return outputs, f"{name} was written outside its bounds"
    return outputs, ""


def _strays(candidate: Candidate, case: Case, inputs: Arguments, whole: dict[str, Array]) -> str:
    """What a thread had to do with tokens that are not its own, whose outputs it must leave alone
    and whose inputs must not matter: no barrier stands between kernels that keep to this."""
    op, tokens = candidate.op, case.shape["tokens"]
    for thread in range(3):
        own = slice(tokens * thread // 3, tokens * (thread + 1) // 3)
        others = np.ones(tokens, bool)
        others[own] = False
        spoilt = dict(inputs)
        for argument in op.inputs:
            if argument.axes[:1] == ("tokens",) and argument.dtype == "f32":
                spoilt[argument.name] = np.where(
                    others.reshape(-1, *[1] * (len(argument.axes) - 1)),
                    np.float32(np.nan),
                    inputs[argument.name],
                )
        outputs, broken = _run(candidate, case, spoilt, 3, (thread,))
        if broken:
            return broken
        for output in op.outputs:
            if output.axes[:1] == ("tokens",):
                got = outputs[output.name]
                if not _same_bits(got[own], whole[output.name][own]):
                    return f"{output.name}: a thread's own tokens depend on others'"
                if (got[others].view(np.uint8) != 0xFF).any():
                    return f"{output.name}: a thread wrote to tokens of others"
    return ""


def _same_bits(a: Array, b: Array) -> bool:
    return a.tobytes() == b.tobytes()


def compare(
    candidate: Candidate, case: Case, inputs: Arguments, outputs: dict[str, Array]
) -> Verdict:
    """What a candidate made of these inputs, against the reference and the op's bound."""
    op = candidate.op
    inputs, outputs, rest = _sampled(op, case, inputs, outputs)
    if rest:
        return Verdict(case, np.inf, np.inf, rest)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = op.expected(inputs)
        if candidate.activations == "float32":
            bounds, also = op.bound(inputs, expected), op.also(inputs, expected)
            return _judged(case, outputs, expected, bounds, also)
        if case.values in NOT_FINITE:
            return _contained(case, inputs["x"], outputs["out"], expected["out"])
        exact, tight, step = op.rounded[candidate.activations](inputs)
        verdict = _judged(case, outputs, op.expected(exact), {"out": tight})
        if not verdict.passed:
            return verdict
        quality = _judged(case, outputs, expected, {"out": tight + step})
        return Verdict(case, verdict.worst, quality.nmse, quality.failure)


def _sampled(
    op: Op, case: Case, inputs: Arguments, outputs: dict[str, Array]
) -> tuple[Arguments, dict[str, Array], str]:
    """Inputs and outputs for those rows of a large weight that are not zero, and what is wrong
    with the others' outputs, which are zero."""
    weight = next((a for a in op.inputs if a.axes[:1] == (op.separate,)), None)
    if not op.separate or weight is None:
        return inputs, outputs, ""
    rows, elements = (size_of(axis, case.shape) for axis in weight.axes)
    chosen = case.sampled(rows, elements)
    if len(chosen) == rows:
        return inputs, outputs, ""
    inputs = {**inputs, weight.name: inputs[weight.name][chosen]}
    found = {}
    for output in op.outputs:
        axis = output.axes.index(op.separate)
        found[output.name] = np.take(outputs[output.name], chosen, axis)
        others = np.delete(outputs[output.name], chosen, axis)
        if others.any():
            return inputs, found, f"{output.name}: rows of zeros gave other than zeros"
    return inputs, found, ""


def _contained(case: Case, x: Array, got: Array, want: Array) -> Verdict:
    """Of a kernel that rounds x: tokens that hold infinities or NaN give what is not finite where
    the reference does; how others fare is what other cases ask."""
    strange = ~np.isfinite(x.reshape(len(x), -1)).all(axis=1)
    failure = ""
    if np.isfinite(got[strange][~np.isfinite(want[strange])]).any():
        failure = "out is finite where the reference is infinite or NaN"
    elif not np.isfinite(got[~strange]).all():
        failure = "out is not finite in a token whose inputs are"
    return Verdict(case, np.inf if failure else 0.0, np.inf if failure else 0.0, failure)


def _judged(
    case: Case,
    outputs: dict[str, Array],
    expected: dict[str, Array],
    bounds: dict[str, Array],
    also: Mapping[str, Array] | None = None,
) -> Verdict:
    worst = nmse = 0.0
    for name, want in expected.items():
        got, bound = outputs[name].astype(np.float64), np.asarray(bounds[name], np.float64)
        want = want.astype(np.float64)
        if outputs[name].dtype == np.float32:
            # what lies within the bound of float32's largest number may be an infinity
            beyond = np.isinf(got) & (np.abs(want) + bound >= FLOAT32_ENDS)
            want = np.where(beyond & (np.sign(got) == np.sign(want)), got, want)
            want = np.where(np.abs(want) - bound >= FLOAT32_ENDS, np.copysign(np.inf, want), want)
        error = np.where((got == want) | (np.isnan(got) & np.isnan(want)), 0, np.abs(got - want))
        for other in (also or {}).get(name, ()):
            error = np.where(got == other, 0, error)
        bad = ~((error <= bound) | (error == 0))  # also where got, want or its bound alone is NaN
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


def replay(kernel: str, case: Case) -> str:
    """The command that tries a case again on a kernel, given by name."""
    op, target, variant, *_ = kernel.split("/")
    program = "python -m conformance.cuda.op" if target == "cuda" else "assay op"
    return f"{program} {op} --variant {variant} {case.describe()}"
