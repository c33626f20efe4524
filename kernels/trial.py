"""A kernel's trial: the checks that an engine demands before a kernel serves, and the op's laws.

Level "quick" is what the engine demands: the op's cases, some of them drawn from a secret seed, and
the shapes of the nodes that the kernel will serve. Level "full" adds the laws. As a program
(`python -m kernels.trial`) it is the child of `kernels.certify`: it reads requests from standard
input and writes JSON lines, the next thing to be tried and each certificate in turn, so that the
parent knows which kernel and case took the process down.
"""

import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy as np

from kernels.call import AnyKernel, bind, emulated
from kernels.certificates import Certificate, Key, code_of, construction_of
from kernels.child import begin, leave
from kernels.cpu.runtime.sequence import in_turn
from kernels.cuda.runtime.kernel import CudaKernel
from kernels.domain import extent, fixed, node_cases
from kernels.judge import Verdict, judge, replay
from kernels.shapes import empty_outputs, sizes
from kernels.table import find_any
from reference.op import Arguments, Array, Case, Law, Op, Shape

EMULATED_MOST = 2**24  # bytes and operations of a case that an emulator may take,
EMULATED_SIZE = 2**15  # and the largest size of an axis
SECRET_CASES = 12
LAW_CASES = 2  # sizes at which each law is tried; fewer on an emulator

COMPANY = ("tokens-alone", "cuts-change-no-bit")  # laws about a token's bits in any batch

# The stage in which a trial failed.
CONSTRUCTION, CASES, LAWS, SHAPE = "construction", "cases", "laws", "shape"


@dataclass(frozen=True, slots=True)
class Request:
    """A kernel to try, at a level and for nodes of these shapes; or only at `shapes_only`, when the
    rest is certified already."""

    kernel: str
    level: str = "quick"
    shapes: tuple[Shape, ...] = ()
    shapes_only: bool = False

    def line(self) -> str:
        """The request as a line for the child, which parses it."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, line: str) -> "Request":
        said = json.loads(line)
        return cls(**{**said, "shapes": tuple(said["shapes"])})


@dataclass(frozen=True, slots=True)
class Tried:
    """One item of a trial: its stage, and the command that runs it again."""

    stage: str
    verdict: Verdict
    again: str


Tell = Callable[[str, str], None]  # the stage, and the command that repeats what comes next


def nobody(stage: str, again: str) -> None:
    """Report progress to nobody."""


def attempt(
    kernel: AnyKernel, request: Request, secret: int, tell: Tell = nobody
) -> Iterator[Tried]:
    """Run everything that a request asks for, in order."""
    op, cases = kernel.spec, sampled(kernel, secret)

    def case_tried(stage: str, case: Case) -> Tried:
        again = replay(kernel.name, case, secret)
        tell(stage, again)
        return Tried(stage, judge(kernel, case, secret), again)

    tell(CONSTRUCTION, "")
    if complaint := construction_of(kernel):
        failed = Verdict(op.case({}, op.values[0], 0, kernel.format), np.inf, np.inf, complaint)
        yield Tried(CONSTRUCTION, failed, "")
        return
    if not request.shapes_only:
        yield from (case_tried(CASES, case) for case in cases)
    for shape in request.shapes:
        own = [c for c in node_cases(op, cases, shape, secret) if kernel.takes(c.shape)]
        if not any(fixed(op, shape).items() <= case.shape.items() for case in own):
            sizes = ", ".join(f"{axis}={size}" for axis, size in shape.items())
            yield Tried(SHAPE, Verdict(cases[0], np.inf, np.inf, f"no case has {sizes}"), "")
            return
        yield from (case_tried(SHAPE, case) for case in own)
    if request.level == "full" and not request.shapes_only:
        for law in laws_of(kernel):
            for case in law_cases(kernel, secret):
                tell(LAWS, f"{law.name}: {replay(kernel.name, case, secret)}")
                yield Tried(LAWS, held(kernel, law, case), replay(kernel.name, case, secret))


def sampled(kernel: AnyKernel, secret: int) -> list[Case]:
    """The op's cases that this kernel takes, corners and secret ones included, the cheapest first;
    of an emulated kernel only those that it can run in time."""
    op = kernel.spec
    found = op.quick_cases(kernel.format)
    found += op.quick_cases(kernel.format, SECRET_CASES, secret)[:SECRET_CASES]
    if emulated(kernel):
        found = [case for case in found if _emulable(op, case)]
    taken = (case for case in found if kernel.takes(case.shape))
    return sorted(taken, key=lambda case: work_of(op, case))


def work_of(op: Op, case: Case) -> float:
    """The minimum of bytes and operations of a case, added up."""
    cost = op.cost(case.shape, case.format)
    return cost.bytes + cost.operations


def _emulable(op: Op, case: Case) -> bool:
    return max(case.shape.values()) <= EMULATED_SIZE and work_of(op, case) <= EMULATED_MOST


def laws_of(kernel: AnyKernel) -> list[Law]:
    """The op's laws that apply to the kernel's format and numerics; a BLAS chooses its order of
    sums by the number of tokens and so promises nothing about a token's bits in other batches."""
    found = [law for law in kernel.spec.laws if kernel.format in (law.formats or (kernel.format,))]
    if kernel.activations in kernel.spec.rounded:
        found = [law for law in found if not law.float32]
    if isinstance(kernel, CudaKernel) and kernel.multiplies:
        return [law for law in found if law.name not in COMPANY]
    return found


def law_cases(kernel: AnyKernel, secret: int) -> list[Case]:
    """Ordinary cases of the sampled sizes, the largest first, from which a law takes its sizes."""
    op = kernel.spec
    most = {axis: max(sizes) for axis, sizes in op.axes.items()}

    def ordinary(case: Case) -> bool:
        sizes = ((case.shape[axis], largest) for axis, largest in most.items())
        return case.values == op.values[0] and all(
            size <= largest and (size or largest == 1)  # a flag may be 0
            for size, largest in sizes
        )

    found = [case for case in sampled(kernel, secret) if ordinary(case)]
    found = found or [op.case({}, op.values[0], secret, kernel.format)]
    count = 1 if emulated(kernel) else LAW_CASES
    return sorted(found, key=lambda c: op.cost(c.shape, c.format).bytes)[-count:]


class NotTakenError(Exception):
    """Sizes that the op allows and the kernel does not take."""


def held(kernel: AnyKernel, law: Law, case: Case) -> Verdict:
    """Check one law on a kernel."""
    try:
        broken = law.broken(partial(_applied, kernel), case)
    except NotTakenError:  # a law about sizes that this kernel does not take
        broken = ""
    except IndexError as error:
        broken = f"what it gives stands for nothing: {error}"
    if not broken:
        return Verdict(case)
    return Verdict(case, np.inf, np.inf, f"against the law {law.name}: {broken}")


def _applied(kernel: AnyKernel, inputs: Arguments) -> dict[str, Array]:
    """The kernel's outputs for these inputs, in memory pre-filled with garbage."""
    shape = sizes(kernel.spec, inputs, kernel.format)
    if not kernel.takes(shape):
        raise NotTakenError(f"{kernel.name} does not take {shape}")
    outputs = empty_outputs(kernel.spec, shape, kernel.format)
    for output in outputs.values():
        output.reshape(-1).view(np.uint8)[:] = 0xFF  # NaN as a float, -1 as an integer
    bind(kernel, inputs, outputs)(1, (0,))
    return outputs


def certificate_of(
    kernel: AnyKernel,
    attempts: Iterable[Tried],
    request: Request,
    started: float,
) -> Certificate:
    """The certificate of these attempts; the first failure ends the trial."""
    cases, worst, nmse, failure, stage = list[Case](), 0.0, 0.0, "", ""
    for one in attempts:
        verdict = one.verdict
        if one.stage != CONSTRUCTION:  # runs nothing
            cases.append(verdict.case)
        worst = max(worst, verdict.worst)
        if verdict.case.values == "normal":  # where sums cancel, NMSE says nothing
            nmse = max(nmse, verdict.nmse)
        if not verdict.passed:
            again = f" (again: {one.again})" if one.again else ""
            failure, stage = verdict.failure + again, one.stage
            break
    if not cases and not failure:
        failure, stage = "no case was tried", CASES
    return Certificate(
        kernel=kernel.name,
        key=Key.of(kernel).digest,
        level="quick" if request.shapes_only else request.level,
        cases=len(cases),
        worst=worst if np.isfinite(worst) else -1.0,
        nmse=nmse if np.isfinite(nmse) else -1.0,
        seconds=round(time.perf_counter() - started, 3),
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        failure=failure,
        stage=stage,
        partial=request.shapes_only,
        code=code_of(kernel),
        axes=extent(cases),
        shapes=tuple(dict(shape) for shape in request.shapes),
    )


def answered(
    kernel: AnyKernel, request: Request, secret: int | None = None, tell: Tell = nobody
) -> Certificate:
    """The certificate of a request, tried in this process."""
    started = time.perf_counter()
    chosen = secrets.randbits(31) if secret is None else secret
    return certificate_of(kernel, attempt(kernel, request, chosen, tell), request, started)


def demanded(
    kernel: AnyKernel, shapes: Sequence[Shape] = (), secret: int | None = None
) -> Certificate:
    """The checks that an engine demands before the kernel serves nodes of these shapes."""
    return answered(kernel, Request(kernel.name, shapes=tuple(shapes)), secret)


def answer(given: Callable[[AnyKernel, Request, Tell], Certificate]) -> None:
    """Serve requests; standard output is reserved for certificates, and what libraries print goes
    to stderr."""
    with os.fdopen(os.dup(1), "w", buffering=1) as answers:
        os.dup2(2, 1)

        def say(**what: Any) -> None:
            answers.write(json.dumps(what) + "\n")

        for line in sys.stdin:
            request = Request.parse(line)
            kernel = find_any(request.kernel)
            certificate = given(kernel, request, lambda *what: say(trying=what))
            say(certificate=asdict(certificate))


def main() -> None:
    answer(lambda kernel, request, tell: answered(kernel, request, None, tell))
    in_turn.compile()  # for the parent: an engine compiles nothing itself then
    leave()


if __name__ == "__main__":
    begin(main)
