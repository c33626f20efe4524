"""The solutions of a folder: found, judged with their op's laws, and timed in turns."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bench.board.rows import Row, sorted_rows
from bench.cases import asked
from bench.conditions import conditions
from bench.limits import Limits
from bench.ratio import ratio
from bench.timing import Rule, race
from bench.workload import ARITHMETIC
from data.shapes import read
from kernels.foreign.candidate import KINDS, Candidate, with_numerics
from kernels.foreign.child import Limits as ChildLimits
from kernels.foreign.judge import REFUSED, Level, judge
from kernels.foreign.report import BROKEN, HELD, Report
from kernels.foreign.samples import CAUGHT, Samples, sampled
from reference.op import Case, Op, Shape
from reference.table import OPS, find_op

MODEL = "tinyllama-1.1b"  # whose sizes are timed where nobody says others
TOKENS = (1, 512)
LEVEL = 0.05  # of finding a difference, among all of a race, where there is none
TOGETHER = 3  # consecutive rounds that are drawn as one
STARTS = 3  # of the processes of a race
MOST_CALLS = 512  # of a sample: letting a child run and seeing it stop takes some 50 microseconds
RULE = Rule(least=7, error=0.01, cap_seconds=2.0, most=100)  # of each start
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Entry:
    """A solution, its op, and what the judge says."""

    candidate: Candidate
    op: Op
    format: str | None
    report: Report
    name: str

    def row(self, machine: str, shape: str, threads: int) -> Row:
        """Of a solution that is not timed, or not yet."""
        report = self.report
        laws = {o: tuple(w.name for w in report.laws if w.outcome == o) for o in (HELD, BROKEN)}
        return Row(
            machine, self.op.name, self.format or "", shape, threads, self.name, report.verdict,
            worst=report.worst, nmse=report.nmse, numerics=report.numerics,
            held=laws[HELD], broken=laws[BROKEN], why=report.reason,
        )  # fmt: skip


def solutions(folder: Path) -> Iterator[tuple[Candidate, str] | str]:
    """Every file of a kind that can be judged and its op: what its manifest says, or what the
    folder that it lies in is called; a line for a file that says neither."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder")
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.suffix not in KINDS or any(part.startswith((".", "__")) for part in parts):
            continue
        try:
            candidate = Candidate.of(path)
        except REFUSED as error:
            yield str(error)
            continue
        op = candidate.manifest.op or next((p for p in reversed(parts[:-1]) if p in OPS), "")
        yield (candidate, op) if op else f"{path} says of no op that it is its kernel: left out"


def shapes_of(op: Op, format: str | None) -> list[Shape]:
    """TinyLlama's for a token and for many; those of the op's cases where it has none of it."""
    found: list[Shape] = []
    if op.name in OPS:
        for tokens in TOKENS:
            found += [
                op.case(s, format=format).shape
                for s in asked(op.name, read().models[MODEL], tokens)
            ][:1]
    return found or [op.case({}, format=format).shape]


def board(
    found: Sequence[tuple[Candidate, str]],
    folder: Path,
    limits: Limits,
    threads: int,
    sizes: Mapping[str, int] | None = None,
    level: Level = "full",
    rule: Rule = RULE,
    tell: Tell = lambda _: None,
) -> list[Row]:
    """Judge all, and race those that are right, at these sizes or the usual ones of their op."""
    groups: dict[tuple[str, str | None], list[Entry]] = {}
    for candidate, name in found:
        tell(f"judging {candidate}")
        op = find_op(name)
        entry = _judged(
            candidate, op, str(candidate.file.relative_to(folder.absolute())), threads, level
        )
        groups.setdefault((op.name, entry.format), []).append(entry)
    rows: list[Row] = []
    for entries in groups.values():
        op, weights = entries[0].op, entries[0].format
        wanted = [op.case(sizes, format=weights).shape] if sizes else shapes_of(op, weights)
        for shape in wanted:
            tell(f"timing {op.name}")
            case = op.case(shape, format=weights)
            rows += raced(entries, case, limits, threads, rule)
    return sorted_rows(rows)


def _judged(candidate: Candidate, op: Op, name: str, threads: int, level: Level) -> Entry:
    wanted = candidate.manifest.format or (op.formats[0] if op.formats else None)
    report = judge(candidate, op, wanted, level, ChildLimits(threads=threads), shrink=False)
    return Entry(candidate, op, wanted, report, name)


def raced(
    entries: Sequence[Entry], case: Case, limits: Limits, threads: int, rule: Rule
) -> list[Row]:
    """Those that are right and take the shape, in turns; one that gives what is wrong while it is
    timed, or is faster than the machine can be, is not right."""
    machine = conditions().device
    shape = ",".join(f"{axis}={size}" for axis, size in case.shape.items())
    rows = {entry.name: entry.row(machine, shape, threads) for entry in entries}
    for entry in entries:
        if entry.report.passed and not entry.candidate.manifest.serves(case.shape):
            why = f"it takes {entry.candidate.manifest.takes}"
            rows[entry.name] = _not_right(rows[entry.name], "other sizes", why)
        elif entry.report.passed and (why := entry.report.untimed):
            rows[entry.name] = _not_right(rows[entry.name], "not timed", why)
    starts: dict[str, list[list[float]]] = {entry.name: [] for entry in entries}
    for _ in range(STARTS):
        for name, samples in _started(entries, case, rows, threads, rule).items():
            starts[name].append(samples)
    for entry in entries:
        if _right(rows[entry.name]):
            samples = [s for some in starts[entry.name] for s in some]
            rows[entry.name] = _timed(rows[entry.name], entry, case, samples, limits, threads)
    return ranked(rows, {name: some for name, some in starts.items() if _right(rows[name])})


def _right(row: Row) -> bool:
    return row.verdict == "passed"


def _started(
    entries: Sequence[Entry], case: Case, rows: dict[str, Row], threads: int, rule: Rule
) -> dict[str, list[float]]:
    """Samples of all that are right, each in a child of its own that was started for them."""
    running: dict[str, Callable[[], float]] = {}
    with ExitStack() as stack:
        for entry in entries:
            if not _right(rows[entry.name]):
                continue
            own = ChildLimits(threads=threads)
            timed = sampled(
                entry.candidate, entry.op, entry.format, case.shape, own, most_calls=MOST_CALLS
            )
            try:
                samples = stack.enter_context(timed)
            except CAUGHT as error:
                rows[entry.name] = _not_right(rows[entry.name], "wrong", str(error))
            else:
                running[entry.name] = _guarded(samples, rows, entry.name)
        return race(running, rule) if running else {}


def _guarded(clock: Samples, rows: dict[str, Row], name: str) -> Callable[[], float]:
    """A sampler that notes why it ended, and takes no part from then on."""

    def sample() -> float:
        if not _right(rows[name]):
            return math.nan
        try:
            return clock()
        except CAUGHT as error:
            rows[name] = _not_right(rows[name], "wrong", str(error))
            return math.nan

    return sample


def _not_right(row: Row, verdict: str, why: str) -> Row:
    return replace(row, verdict=verdict, why=why)


def _timed(
    row: Row, entry: Entry, case: Case, samples: Sequence[float], limits: Limits, threads: int
) -> Row:
    """With its share of the limit; refused where that is more than can be, whatever arithmetic."""
    seconds, cost = float(np.median(samples)), entry.op.cost(case.shape, case.format)
    row = replace(row, seconds=seconds, samples=len(samples))
    if not limits.rates:
        return row
    _, activations = with_numerics(entry.op, row.numerics)

    def least(arithmetic: str) -> float:
        found = limits.limit(cost, arithmetic, threads, max(1, int(cost.bytes)))
        return found.seconds * (1 - found.spread) if found else 0.0

    if (fastest := min(map(least, ARITHMETIC.values()))) > seconds:
        why = f"{seconds:.3g} s a call, and this machine takes {fastest:.3g} s for what it moves"
        return _not_right(row, "refused", why)
    return replace(row, share=least(ARITHMETIC.get(activations, "f32")) / seconds)


def ranked(rows: Mapping[str, Row], starts: Mapping[str, Sequence[Sequence[float]]]) -> list[Row]:
    """Of a rank are the fastest that is left and who is not slower beyond the noise; the next
    begins behind them all.

    `starts` has samples of each, of several starts in turns with the others'. The interval of two
    times' ratio is at a level that allows for all pairs, and wider by what it was apart in single
    starts: processes that run the same code differ by where their memory lies.
    """
    samples = {name: [s for some in each for s in some] for name, each in starts.items()}
    level = 1 - LEVEL / max(1, len(samples) * (len(samples) - 1) // 2)

    def over(name: str, other: str) -> tuple[float, float, float]:
        if name == other:
            return 1.0, 1.0, 1.0
        found = ratio(samples[name], samples[other], level=level, together=TOGETHER)
        wide = apart(starts[name], starts[other], found.value)
        return found.value, found.low / wide, found.high * wide

    order, found = sorted(samples, key=lambda name: float(np.median(samples[name]))), dict(rows)
    leader, rank = "", 0
    for place, name in enumerate(order, 1):
        if not leader or over(name, leader)[1] > 1:
            leader, rank = name, place
        value, low, high = over(name, order[0])
        found[name] = replace(rows[name], rank=rank, ratio=value, low=low, high=high)
    return [*found.values()]


def apart(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]], all_: float) -> float:
    """How far from the ratio of all is that of a single start at most, as a factor."""
    each = (float(np.median(a) / np.median(b)) for a, b in zip(ours, theirs, strict=True))
    return max(max(one / all_, all_ / one) for one in each)
