"""Judges a candidate in a child process: on the cases that our own kernels must pass, and by its
op's laws.

The verdict rests on numbers alone: a law that is broken within the op's bound is only reported.
"""

import secrets
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, Literal, get_args

import numpy as np

from kernels.foreign.candidate import (
    Candidate,
    CandidateError,
    Layout,
    scales_apart,
    with_numerics,
)
from kernels.foreign.child import Child, Ended, Limits
from kernels.foreign.cubin import CubinError
from kernels.foreign.laws import laws_told
from kernels.foreign.layout import laid_out
from kernels.foreign.manifest import ManifestError
from kernels.foreign.prototype import PrototypeError
from kernels.foreign.report import INTERPRETED, Failed, Report
from kernels.foreign.turns import Turns, Wrote
from kernels.judge import Verdict, compare
from kernels.provenance import machine
from kernels.trial import SECRET_CASES, work_of
from reference.op import Arguments, Case, Op
from reference.table import find_op

Level = Literal["quick", "full", "deep"]
LEVELS = get_args(Level)
DEEP_CASES = 300
SMALL = 2**22  # bytes and operations of a case whose call is repeated with changed data
SMALL_INTERPRETED = 2**12  # the same where each block of a kernel takes milliseconds
TOGETHER, TOGETHER_SLOW = 2**23, 2**16  # bytes and operations of a case with several large sizes
AGAIN = 8  # small cases repeated after the large ones
AFTER_LARGER = "right at first, wrong after calls of larger sizes"
SHRINKING = 4.0  # seconds
Progress = Callable[[int, int], None]
REFUSED = (CandidateError, ManifestError, PrototypeError, CubinError)


@dataclass(frozen=True, slots=True)
class Subject:
    """What `kernels.judge.compare` needs to know of a candidate."""

    spec: Op
    activations: str


def judge(
    candidate: Candidate,
    op: str | Op,
    format: str | None = None,
    level: Level = "quick",
    limits: Limits | None = None,
    *,
    numerics: str = "",
    secret: int | None = None,
    case: Case | None = None,
    shrink: bool = True,
    progress: Progress | None = None,
) -> Report:
    """Judge a candidate: at one `case`, or at all cases of a level.

    "quick" runs the op's cases, its corners and a dozen secret ones; "full" adds the op's laws,
    which are reported of a wrong candidate too; "deep" adds hundreds of cases. With `shrink`, a
    failing case is shrunk for some seconds. `format` is the weights', by default the manifest's or
    the op's first; so are `numerics`. ValueError for an unknown op, format or level; whatever the
    candidate does is in the report.
    """
    judging = Judge(candidate, op, format, level, limits, numerics, secret)
    return judging.report(case, shrink, progress)


class Judge:
    """One candidate and the child that runs it at present."""

    def __init__(
        self, candidate: Candidate, op: str | Op, format: str | None, level: str,
        limits: Limits | None, numerics: str, secret: int | None,
    ) -> None:  # fmt: skip
        if level not in LEVELS:
            raise ValueError(f"level must be one of {', '.join(LEVELS)}, got {level!r}")
        found = find_op(op) if isinstance(op, str) else op
        manifest = candidate.manifest
        wanted = format or manifest.format or (found.formats[0] if found.formats else None)
        if wanted and wanted not in found.formats:
            there = ", ".join(found.formats) or "none"
            raise ValueError(f"{found.name} has no format {wanted!r}: {there}")
        numerics = numerics or manifest.numerics or "exact"
        self.op, activations = with_numerics(scales_apart(found), numerics)
        self.candidate, self.format, self.level, self.numerics = candidate, wanted, level, numerics
        self.limits = limits or Limits()
        self.secret = secrets.randbits(31) if secret is None else secret
        self.subject = Subject(self.op, activations)
        self.sandbox: tuple[tuple[str, str], ...] = ()
        self.other_bits = ""  # of a repeated call
        self.slow = candidate.kind == "cuda"  # emulated or interpreted: small cases only
        self.repeated = SMALL
        self._turns: Turns | None = None

    def report(
        self, case: Case | None = None, shrink: bool = True, progress: Progress | None = None
    ) -> Report:
        """Run everything that the level asks for, or only one case."""
        began = time.perf_counter()
        try:
            found = self._report(case, shrink and not case, progress)
        finally:
            self.close()
        return replace(found, seconds=round(time.perf_counter() - began, 3), sandbox=self.sandbox)

    def _report(self, case: Case | None, shrink: bool, progress: Progress | None) -> Report:
        takes = self.candidate.manifest.takes
        blank = Report(
            str(self.candidate), self.candidate.kind, self.op.name, self.format or "",
            self.numerics, self.level, "refused", machine=machine(), secret=self.secret,
            notes=(f"it was asked for such sizes alone: {takes}",) if takes else (),
        )  # fmt: skip
        try:
            blank = replace(blank, notes=(*blank.notes, *self.layout.notes))
            cases = [case] if case else self.cases()
            for one in cases:
                self.candidate.further_arguments(self.op, one.shape)
            notes = self.turns().child.notes
            if INTERPRETED in notes:
                self.slow, self.repeated = True, SMALL_INTERPRETED
                cases = [case] if case else self.cases()
        except (*REFUSED, Ended) as error:
            return replace(blank, reason=f"it cannot be loaded: {error}")
        blank = replace(blank, notes=(*blank.notes, *notes))
        if not case and not any(self._gives(one) for one in cases):
            return replace(blank, reason=f"no case has {takes}")
        worst = nmse = ordinary = 0.0
        found, again = blank, [] if case else self._again(cases)
        goes_on = not case and self.level != "quick"
        for number, one in enumerate([*cases, *again]):
            if found.reason and one.values != "normal":
                continue
            if progress:
                progress(number, len(cases) + len(again))
            kind, verdict = self.tried(one)
            worst = max(worst, verdict.worst)
            if one.values == "normal":
                nmse, ordinary = max(nmse, verdict.nmse), max(ordinary, verdict.worst)
            if verdict.passed or found.reason:
                continue
            if number >= len(cases):
                said = f"{AFTER_LARGER}, at {one.describe()}: {verdict.failure}"
                found = replace(blank, verdict=kind, reason=said, cases=number + 1)
            else:
                found = self._failed(replace(blank, cases=number + 1), kind, verdict, shrink)
            if not goes_on or found.verdict != "wrong":
                return replace(found, worst=worst, nmse=nmse, ordinary=ordinary)
        if progress:
            progress(len(cases), len(cases))
        found = replace(found, worst=worst, nmse=nmse, ordinary=ordinary)
        if not found.reason:
            found = replace(found, verdict="passed", cases=len(cases))
        if case:
            return found
        laws = tuple(laws_told(self, self.level != "quick", found.passed))
        wrong = next((law for law in laws if law.wrong), None)
        if wrong and found.passed:
            found = replace(
                found, verdict="wrong", reason=f"against the law {wrong.name}: {wrong.example}"
            )
        return replace(found, laws=laws)

    @cached_property
    def layout(self) -> Layout:
        """The candidate, compiled if necessary, and the meaning of its arguments; REFUSED if that
        fails."""
        return laid_out(self.candidate, self.op, self.format)

    def turns(self, threads: int = 0) -> Turns:
        """The current child or a new one; REFUSED or Ended if it does not load."""
        if self._turns is None or not self._turns.child.alive or threads:
            self.close()
            self._turns = Turns(
                Child(self.candidate, self.layout, self.limits, threads), self.op, self.format,
                np.random.default_rng(self.secret),
            )  # fmt: skip
            self.sandbox = self._turns.child.sandbox
        return self._turns

    def close(self) -> None:
        if self._turns:
            self._turns.child.close()
            self._turns = None

    def cases(self) -> list[Case]:
        """The level's cases that the candidate takes, the cheapest first."""
        found = self.op.quick_cases(self.format)
        more = DEEP_CASES if self.level == "deep" else SECRET_CASES
        found += self.op.quick_cases(self.format, more, self.secret)[:more]
        found += [*self._between(), *self._together()]
        if self.slow:
            found = [c for c in found if work_of(self.op, c) <= 2**20]
        taken = [c for c in found if self.candidate.manifest.serves(c.shape)]
        if not taken:
            taken = self._fitting()
        return sorted(taken, key=lambda c: work_of(self.op, c))

    def _again(self, cases: list[Case]) -> list[Case]:
        """Small cases that passed, repeated after the large ones, which may have left something
        behind: the smallest first, since it overwrites least of it."""
        rng = np.random.default_rng(self.secret)
        small = [c for c in cases if self._gives(c) and work_of(self.op, c) <= SMALL]
        return [small[i] for i in sorted(map(int, rng.permutation(len(small))[:AGAIN]))]

    def _gives(self, case: Case) -> bool:
        """Whether the case has any output element."""
        return all(prod(o.dims(case.shape, case.format)) for o in self.op.outputs)

    def _between(self) -> Iterator[Case]:
        """For each axis, sizes between those of the tables, up to its largest; other axes have
        their second size."""
        rng = np.random.default_rng([self.secret, 1])
        few = {axis: sorted(some)[:2][-1] for axis, some in self.op.axes.items()}
        for axis in self.op.axes:
            for step in (1, 64):
                size = self._drawn(axis, rng, step, self._largest(axis) ** 0.5)
                with suppress(ValueError):
                    yield self.op.case({**few, axis: size}, seed=size, format=self.format)

    def _together(self) -> Iterator[Case]:
        """Each kind of values in sizes of which one is beyond the tables and others are of any
        magnitude, as far as time and memory allow."""
        rng = np.random.default_rng([self.secret, 2])
        most = min(self.repeated, TOGETHER_SLOW) if self.slow else TOGETHER
        wide = [axis for axis, some in self.op.axes.items() if max(some) > 1]
        for number, kind in enumerate(self.op.kinds if wide else ()):
            own = wide[(self.secret + number) % len(wide)]
            sizes = {axis: self._drawn(axis, rng) for axis in self.op.axes}
            sizes[own] = self._drawn(own, rng, least=max(self.op.axes[own]))
            with suppress(ValueError):
                while self._work(case := self.op.case(sizes, kind, number, self.format)) > most:
                    larger = [a for a in wide if a != own and sizes[a] > 1] or [own]
                    sizes[larger[int(rng.integers(len(larger)))]] //= 2
                yield case

    def _work(self, case: Case) -> float:
        """Bytes and operations of a case, or the elements of its arrays if these are more."""
        arrays = (a.dims(case.shape, case.format) for a in (*self.op.inputs, *self.op.outputs))
        return max(work_of(self.op, case), sum(prod(dims) for dims in arrays))

    def _drawn(self, axis: str, rng: np.random.Generator, step: int = 1, least: float = 1) -> int:
        """A multiple of `step` between `least` and the largest size of an axis, uniform in
        magnitude, or one of the table of a flag."""
        if max(self.op.axes[axis]) <= 1:
            return int(rng.choice(self.op.axes[axis]))
        ends = (max(1, end / step) for end in (least, self._largest(axis)))
        return step * round(2 ** float(rng.uniform(*map(np.log2, ends))))

    def _largest(self, axis: str) -> int:
        """The largest size of an axis, in the tables or a corner."""
        return max(*self.op.axes[axis], *(corner.get(axis, 0) for corner in self.op.corners))

    def _fitting(self) -> list[Case]:
        """Random sizes that the candidate takes, where it takes none of the usual ones."""
        rng, found = np.random.default_rng(self.secret), list[Case]()
        for number in range(4000):
            sizes = {
                axis: int(2 ** rng.uniform(0, np.log2(max(2, max(some)))))
                if rng.random() < 0.5
                else 64 * int(rng.integers(1, 1 + max(1, max(some) // 64)))
                for axis, some in self.op.axes.items()
            }
            kind = self.op.kinds[number % len(self.op.kinds)]
            case = self.op.case(sizes, kind, number, self.format)
            if self.candidate.manifest.serves(case.shape):
                found.append(case)
            if len(found) == 30:
                break
        return found

    def tried(self, case: Case) -> tuple[str, Verdict]:
        """The kind of failure, if any, and the case's result."""
        rng = np.random.default_rng([self.secret, case.seed, *case.shape.values()])
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                return "wrong", self._tried(case, rng)
        except Wrote as found:
            return "wrong", Verdict(case, np.inf, np.inf, str(found))
        except MemoryError as error:
            raise ValueError(f"{self.op.name} {case.describe()}: {error}") from None
        except Ended as ending:
            said = str(ending)
            self.close()
            if ending.signal in (signal.SIGSEGV, signal.SIGBUS):
                said = self.diagnosed(case, said)
            return ending.kind, Verdict(case, np.inf, np.inf, said)

    def _tried(self, case: Case, rng: np.random.Generator) -> Verdict:
        turns, inputs = self.turns(), self.op.make(case)
        first = turns.call(inputs, case.shape, rng)
        verdict = self._compared(case, inputs, first, turns)
        if not verdict.passed or work_of(self.op, case) > self.repeated:
            return verdict
        other = replace(case, seed=case.seed + int(rng.integers(1, 2**31)))
        changed = self.op.make(other)
        scalars = {a.name: inputs[a.name] for a in self.op.inputs if not a.axes}
        if {k: v.shape for k, v in changed.items() if isinstance(v, np.ndarray)} == {
            k: v.shape for k, v in inputs.items() if isinstance(v, np.ndarray)
        }:
            changed |= scalars if rng.random() < 0.5 else {}
            if place := self._one_place(inputs, rng):
                name, at = place
                one = inputs[name].copy()
                one[at] = changed[name][at]
                other, changed = case, {**inputs, name: one}
        again = turns.call(changed, case.shape, rng, same_place=True)
        second = self._compared(other, changed, again, turns)
        if not second.passed:
            return replace(second, case=case, failure=f"a second call: {second.failure}")
        third = turns.call(inputs, case.shape, rng, ordinary=True)
        if not self.other_bits:
            for name, value in first.items():
                if value.tobytes() != third[name].tobytes() and not np.array_equal(
                    value, third[name], equal_nan=value.dtype.kind == "f"
                ):
                    self.other_bits = f"{name} has other bits at {case.describe()}"
        verdict_again = self._compared(case, inputs, third, turns)
        if not verdict_again.passed:
            return replace(verdict_again, failure=f"a third call: {verdict_again.failure}")
        return replace(
            verdict,
            worst=max(verdict.worst, second.worst, verdict_again.worst),
            nmse=max(verdict.nmse, second.nmse, verdict_again.nmse),
        )

    def _one_place(
        self, inputs: Arguments, rng: np.random.Generator
    ) -> tuple[str, tuple[int, ...]] | None:
        """Half of the time, an element of an input, or a row of a weight, to be changed alone: the
        call then differs from the previous one only there, which tells apart who reads all of its
        input."""
        free = [
            (a.name, len(a.axes) - (a.dtype == "format"))
            for a in self.op.inputs
            if a.axes and (a.dtype == "format" or (a.dtype[0] == "f" and self.op.nan != "domain"))
            if inputs[a.name].size
        ]
        if not free or rng.random() < 0.5:
            return None
        name, axes = free[int(rng.integers(len(free)))]
        return name, tuple(int(rng.integers(n)) for n in inputs[name].shape[:axes])

    def _compared(self, case: Case, inputs: Any, outputs: Any, turns: Turns) -> Verdict:
        verdict = compare(self.subject, case, inputs, outputs)
        turns.look_again()
        if not verdict.passed and (left := turns.unwritten()):
            return replace(verdict, failure=left)
        return verdict

    def diagnosed(self, case: Case, said: str) -> str:
        """Reason of a crash: the case is run again with writable inputs."""
        try:
            with Child(self.candidate, self.layout, self.limits, lenient=True) as child:
                rng = np.random.default_rng(self.secret)
                turns = Turns(child, self.op, self.format, rng)
                turns.call(self.op.make(case), case.shape, rng)
        except Wrote as found:
            return f"{said}: {found}"
        except Ended:
            return f"{said}: it reads or writes outside of its arrays"
        return (
            f"{said}: it touches memory outside of its arrays, writes to an input and restores it,"
            " or wants arrays at multiples of more bytes (say `align = 64` in its manifest)"
        )

    def _failed(self, report: Report, kind: str, verdict: Verdict, shrink: bool) -> Report:
        first = Failed(kind, verdict.failure, verdict.case, self.replay(verdict.case))
        shrunk = first
        if shrink:
            for kind, found in self._smaller(verdict.case):
                shrunk = Failed(kind, found.failure, found.case, self.replay(found.case))
        return replace(
            report, verdict=shrunk.kind, reason=shrunk.reason, first=first, shrunk=shrunk
        )

    def _smaller(self, case: Case) -> Iterator[tuple[str, Verdict]]:
        """Yield ever smaller failing cases while there is time."""
        until, seen, waiting = time.monotonic() + SHRINKING, {str(case)}, [*self._steps(case)]
        while waiting and time.monotonic() < until:
            case = waiting.pop(0)
            if str(case) in seen:
                continue
            seen.add(str(case))
            kind, verdict = self.tried(case)
            if not verdict.passed:
                yield kind, verdict
                waiting = [*self._steps(case)]

    def _steps(self, case: Case) -> Iterator[Case]:
        """The same case with one size smaller, the largest first, or with ordinary values."""
        for axis in sorted(case.shape, key=lambda a: -case.shape[a]):
            size = case.shape[axis]
            for less in (1, size // 4, size // 2, size - size // 4, size - 1):
                if axis in self.op.axes and 0 < less < size:
                    with suppress(ValueError):
                        sizes = {a: s for a, s in case.shape.items() if a in self.op.axes}
                        found = self.op.case(
                            {**sizes, axis: less}, case.values, case.seed, case.format
                        )
                        smaller = found.shape != case.shape
                        if smaller and self.candidate.manifest.serves(found.shape):
                            self.candidate.further_arguments(self.op, found.shape)
                            yield found
        if case.values != self.op.values[0]:
            yield replace(case, values=self.op.values[0])

    def replay(self, case: Case) -> str:
        """The command that runs this case again."""
        where = str(self.candidate.file) + (
            f":{self.candidate.name}" if self.candidate.name else ""
        )
        words = ["assay", "judge", shlex.quote(where), "--op", self.op.name]
        if self.candidate.given:
            words += ["--manifest", shlex.quote(str(self.candidate.given))]
        if self.numerics != "exact":
            words += ["--numerics", self.numerics]
        if self.candidate.kind == "source" and self.candidate.manifest.flags:
            words += ["--flags", shlex.quote(shlex.join(self.candidate.manifest.flags))]
        return " ".join([*words, case.describe(), "--secret", str(self.secret)])
