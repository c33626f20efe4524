"""Finds the solutions in a folder, judges them with their op's laws, and times them in turns."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bench.board.ours import Ours, ours, samplers
from bench.board.rows import Row, sorted_rows
from bench.machine.conditions import conditions
from bench.machine.limits import Limits
from bench.ops.cases import asked
from bench.ops.op_run import WrongOutputError
from bench.ops.workload import ARITHMETIC, arithmetic_of
from bench.race.experiment import Contender, Experiment, Rule, timed
from bench.race.ratio import ratio
from bench.race.results import Measurement
from data.shapes import read
from kernels.cpu.runtime.cores import physical_cores
from kernels.foreign.candidate import KINDS, Candidate, defined
from kernels.foreign.child import Limits as ChildLimits
from kernels.foreign.judge import REFUSED, Level, judge
from kernels.foreign.report import BROKEN, HELD, Report
from kernels.foreign.samples import CAUGHT, sampled
from reference.op import Case, Op, Shape
from reference.table import OPS, find_op

MODEL = "tinyllama-1.1b"  # whose sizes are timed by default
TOKENS = (1, 512)
LEVEL = 0.05  # of finding a false difference anywhere in a race
TOGETHER = 3  # consecutive rounds that are resampled together
STARTS = 3  # process starts in a race
MOST_CALLS = 512  # seconds of a sample: resuming and stopping a child takes some 50 microseconds
RULE = Rule(least=7, error=0.01, cap_seconds=2.0, most=100)  # rounds of each start
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Entry:
    """A solution, its op, and the judge's report."""

    candidate: Candidate
    op: Op
    format: str | None
    report: Report
    name: str

    def row(self, machine: str, shape: str, threads: int) -> Row:
        """The row of a solution without a time."""
        report = self.report
        laws = {o: tuple(w.name for w in report.laws if w.outcome == o) for o in (HELD, BROKEN)}
        return Row(
            machine, self.op.name, self.format or "", shape, threads, self.name, report.verdict,
            worst=report.worst, nmse=report.nmse, ordinary=report.ordinary,
            numerics=report.numerics,
            held=laws[HELD], broken=laws[BROKEN], why=report.reason,
        )  # fmt: skip


def solutions(folder: Path) -> Iterator[tuple[Candidate, str] | str]:
    """Every judgeable file and its op, taken from its manifest, its folder's name, or each function
    named like an op; a complaint for each other file. A file for several formats appears once for
    each."""
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
        named = [(candidate, op)] if op else [
            (replace(candidate, name=name), name)
            for name in (defined(path) if candidate.kind in ("python", "source") else ())
            if name in OPS
        ]  # fmt: skip
        if not named:
            yield f"{path} says of no op that it is its kernel: left out"
        for one, op in named:
            known = OPS[op].formats if op in OPS else ()
            formats = [f for f in one.manifest.formats if f in known] or [""]
            yield from ((one.in_format(f) if f else one, op) for f in formats)


def shapes_of(op: Op, format: str | None) -> list[Shape]:
    """TinyLlama's shapes for one token and for many; those of the op's cases if the model does not
    have the op."""
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
    rule: Rule | None = RULE,
    tell: Tell = lambda _: None,
    own: bool = False,
) -> list[Row]:
    """Judge all, some in parallel, and race the correct ones, at these sizes or the op's usual
    ones; without a rule there is no race. `own`: include our own kernels."""
    files = Counter(candidate.file for candidate, _ in found)

    def judged(one: tuple[Candidate, str]) -> Entry:
        candidate, op = one
        tell(f"judging {candidate}")
        shown = str(candidate.file.relative_to(folder.absolute()))
        if candidate.name and files[candidate.file] > 1:
            shown += f":{candidate.name}"
        return _judged(candidate, find_op(op), shown, threads, level)

    groups: dict[tuple[str, str | None], list[Entry]] = {}
    with ThreadPoolExecutor(physical_cores()) as pool:
        for entry in pool.map(judged, found):
            groups.setdefault((entry.op.name, entry.format), []).append(entry)
    rows: list[Row] = []
    for entries in groups.values():
        op, weights = entries[0].op, entries[0].format
        tell(f"{'timing' if rule else 'trying our'} {op.name}")
        mine = ours(op, weights, conditions().device, threads) if own else None
        if rule is None:
            rows += [entry.row(conditions().device, "", threads) for entry in entries]
            rows += [mine.tried] if mine else []
            continue
        wanted = [op.case(sizes, format=weights).shape] if sizes else shapes_of(op, weights)
        for shape in wanted:
            rows += raced(entries, op.case(shape, format=weights), limits, threads, rule, mine)
    return sorted_rows(rows)


def _judged(candidate: Candidate, op: Op, name: str, threads: int, level: Level) -> Entry:
    wanted = candidate.manifest.format or (op.formats[0] if op.formats else None)
    report = judge(candidate, op, wanted, level, ChildLimits(threads=threads), shrink=False)
    return Entry(candidate, op, wanted, report, name)


def raced(
    entries: Sequence[Entry], case: Case, limits: Limits, threads: int, rule: Rule,
    mine: Ours | None = None,
) -> list[Row]:  # fmt: skip
    """Race the correct solutions that take the shape; one that is wrong while it is timed, or
    faster than the machine can be, becomes wrong."""
    machine = conditions().device
    shape = ",".join(f"{axis}={size}" for axis, size in case.shape.items())
    rows = {entry.name: entry.row(machine, shape, threads) for entry in entries}
    for entry in entries:
        if entry.report.passed and not entry.candidate.manifest.serves(case.shape):
            why = f"it takes {entry.candidate.manifest.takes}"
            rows[entry.name] = _not_right(rows[entry.name], "other sizes", why)
        elif entry.report.passed and (why := entry.report.untimed):
            rows[entry.name] = _not_right(rows[entry.name], "not timed", why)
    rows |= {row.name: row for row in (mine.rows(shape) if mine else ())}
    starts: dict[str, list[list[float]]] = {name: [] for name in rows}
    with ExitStack() as stack:
        own: Mapping[str, Callable[[], float]] = {}
        if mine and mine.tried.verdict == "passed":
            own = stack.enter_context(samplers(mine, case, limits, threads))
        for name in [name for name in starts if mine and name.startswith(mine.tried.name)]:
            if name not in own:
                rows[name] = _not_right(rows[name], "other sizes", "it does not take these")
        for _ in range(STARTS):
            for name, samples in _started(entries, case, rows, threads, rule, own).items():
                starts[name].append(samples)
    for name, some in starts.items():
        if _right(rows[name]):
            samples = [s for each in some for s in each]
            rows[name] = _timed(rows[name], entries[0].op, case, samples, limits, threads)
    return ranked(rows, {name: some for name, some in starts.items() if _right(rows[name])})


def _right(row: Row) -> bool:
    return row.verdict == "passed"


def _started(
    entries: Sequence[Entry], case: Case, rows: dict[str, Row], threads: int, rule: Rule,
    own: Mapping[str, Callable[[], float]],
) -> dict[str, list[float]]:  # fmt: skip
    """Start samplers for all correct solutions, each in a new child, except our `own`; one that
    fails becomes wrong."""
    clocks = {name: clock for name, clock in own.items() if _right(rows[name])}
    with ExitStack() as stack:
        for entry in entries:
            if not _right(rows[entry.name]):
                continue
            child = ChildLimits(threads=threads)
            timing = sampled(
                entry.candidate, entry.op, entry.format, case.shape, child, most_calls=MOST_CALLS
            )
            try:
                clocks[entry.name] = stack.enter_context(timing)
            except CAUGHT as error:
                rows[entry.name] = _not_right(rows[entry.name], "wrong", str(error))
        row, excused = Measurement("op", entries[0].op.name), (*CAUGHT, WrongOutputError)
        raced = Experiment({
            name: Contender(row, timed(clock), excused=excused) for name, clock in clocks.items()
        })  # fmt: skip
        raced.run(rule)
    for name, one in raced.contenders.items():
        if one.absent:
            rows[name] = _not_right(rows[name], "wrong", one.absent)
    return {name: [s.seconds for s in one.taken] for name, one in raced.contenders.items()}


def _not_right(row: Row, verdict: str, why: str) -> Row:
    return replace(row, verdict=verdict, why=why)


def _timed(
    row: Row, op: Op, case: Case, samples: Sequence[float], limits: Limits, threads: int
) -> Row:
    """Add the time and its share of the limit; refused if that exceeds any arithmetic's limit."""
    seconds, cost = float(np.median(samples)), op.cost(case.shape, case.format)
    row = replace(row, seconds=seconds, samples=len(samples))
    if not limits.rates:
        return row

    def least(arithmetic: str) -> float:
        found = limits.limit(cost, arithmetic, threads, max(1, int(cost.bytes)))
        return found.seconds * (1 - found.spread) if found else 0.0

    if (fastest := min(map(least, ARITHMETIC.values()))) > seconds:
        why = f"{seconds:.3g} s a call, and this machine takes {fastest:.3g} s for what it moves"
        return _not_right(row, "refused", why)
    return replace(row, share=least(arithmetic_of(row.numerics, case.format)) / seconds)


def ranked(rows: Mapping[str, Row], starts: Mapping[str, Sequence[Sequence[float]]]) -> list[Row]:
    """Rank 1 has the fastest and all that are not slower beyond noise; the next rank begins after
    them.

    `starts` has samples of each solution from several process starts, in turns with the others. The
    interval of a ratio of two times is at a level corrected for all pairs, and widened by how much
    single starts differ: processes that run the same code differ by where their memory lies.
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
    """The largest factor between a single start's ratio and the overall one."""
    each = (float(np.median(a) / np.median(b)) for a, b in zip(ours, theirs, strict=True))
    return max(max(one / all_, all_ / one) for one in each)
