"""The op's laws, checked on a candidate, and laws that hold for a good kernel of any op."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kernels.foreign.candidate import ON_GPU
from kernels.foreign.child import Ended
from kernels.foreign.manifest import LaunchError
from kernels.foreign.report import BROKEN, HELD, NOT_ASKED, LawResult
from kernels.foreign.turns import Wrote
from kernels.judge import compare
from kernels.shapes import ShapeError, sizes
from kernels.trial import LAW_CASES
from reference.laws.common import other_bits
from reference.op import Arguments, Array, Case, Law

if TYPE_CHECKING:
    from kernels.foreign.judge import Judge

AGAIN, THREADS = "same-bits-again", "threads-change-no-bit"
MOST_THREADS = 16
MOST_JUDGED = 2**24  # bytes and operations of a law's input that is also judged by numbers


def laws_told(judge: "Judge", asked: bool, right: bool) -> Iterator[LawResult]:
    """Yield the result of each law; of a candidate that is not `right` on cases, by bits alone."""
    outcome = BROKEN if judge.other_bits else HELD
    yield LawResult(AGAIN, outcome, judge.other_bits)
    names = [law for law in judge.op.laws if judge.format in (law.formats or (judge.format,))]
    rounded = judge.subject.activations != "float32"
    if not asked:
        yield LawResult(THREADS, NOT_ASKED, "at level quick")
        for law in names:
            yield LawResult(law.name, NOT_ASKED, "at level quick")
        return
    cases = _cases(judge)
    for law in names:
        if law.float32 and rounded:
            yield LawResult(law.name, NOT_ASKED, "it is of kernels that round no input")
        else:
            yield _tried(judge, law, cases)
    yield _threads(judge, cases, right)


def _cases(judge: "Judge") -> list[Case]:
    op = judge.op
    most = {axis: max(some) for axis, some in op.axes.items()}
    found = [
        case
        for case in judge.cases()
        if case.values == op.values[0]
        and all(0 < case.shape[a] <= size or size <= 1 for a, size in most.items())
    ]
    found = found or [op.case({}, op.values[0], judge.secret % 2**31, judge.format)]
    return found[-(1 if judge.slow else LAW_CASES) :]


def _tried(judge: "Judge", law: Law, cases: list[Case]) -> LawResult:
    seen: list[tuple[Arguments, dict[str, Array]]] = []

    def apply(inputs: Arguments) -> dict[str, Array]:
        outputs = _applied(judge, inputs)
        seen.append((inputs, outputs))
        return outputs

    for case in cases:
        seen.clear()
        try:
            broken = law.broken(apply, case)
        except ShapeError as error:
            return LawResult(law.name, NOT_ASKED, str(error))
        except IndexError as error:
            broken = f"what it gives stands for nothing: {error}"
        except (Ended, Wrote) as ending:
            judge.close()
            return LawResult(law.name, BROKEN, str(ending), wrong=True)
        if broken:
            beyond = _beyond(judge, seen, case)
            return LawResult(law.name, BROKEN, f"{broken} {beyond}".strip(), wrong=bool(beyond))
    return LawResult(law.name, HELD)


def _applied(judge: "Judge", inputs: Arguments) -> dict[str, Array]:
    given = {
        name: np.ascontiguousarray(value) if isinstance(value, np.ndarray) else value
        for name, value in inputs.items()
    }
    shape = sizes(judge.op, given, judge.format)
    if not judge.candidate.manifest.serves(shape):
        raise ShapeError(f"sizes that it does not take: {shape}")
    try:
        judge.candidate.further_arguments(judge.op, shape)
    except LaunchError as error:
        raise ShapeError(str(error)) from None
    rng = np.random.default_rng([judge.secret, len(shape)])
    return dict(judge.turns().call(given, shape, rng))


def _beyond(judge: "Judge", seen: list[tuple[Arguments, dict[str, Array]]], case: Case) -> str:
    """The first violation of a law that is also beyond the op's bound."""
    for inputs, outputs in seen:
        held = sum(v.nbytes for v in inputs.values() if isinstance(v, np.ndarray))
        if held <= MOST_JUDGED:
            with np.errstate(over="ignore", invalid="ignore"):
                verdict = compare(judge.subject, case, inputs, outputs)
            if not verdict.passed:
                return f"({verdict.failure})"
    return ""


def _threads(judge: "Judge", cases: list[Case], right: bool) -> LawResult:
    """One thread and several give the same bits, and any number of threads a correct result."""
    if judge.candidate.kind in ON_GPU:
        return LawResult(THREADS, NOT_ASKED, "it has blocks")
    rng = np.random.default_rng(judge.secret)
    found: list[list[dict[str, Array]]] = []
    for threads in (int(rng.integers(4, MOST_THREADS)), 1, 3):
        found.append([])
        try:
            turns = judge.turns(threads)
            for case in cases:
                inputs = judge.op.make(case)
                found[-1].append(turns.call(inputs, case.shape, rng).copy())
                if right and (beyond := _beyond(judge, [(inputs, found[-1][-1])], case)):
                    return LawResult(THREADS, BROKEN, f"by {threads}: {beyond}", wrong=True)
        except (Ended, Wrote) as ending:
            judge.close()
            return LawResult(THREADS, BROKEN, f"by {threads}: {ending}", wrong=True)
    for case, one, several in zip(cases, *found[1:], strict=True):
        if unlike := other_bits(several, one):
            return LawResult(THREADS, BROKEN, f"{unlike} by 3 threads, at {case.describe()}")
    return LawResult(THREADS, HELD)
