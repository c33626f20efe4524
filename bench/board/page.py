"""A leaderboard as a report: a section for each op, a table for each shape and machine."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from bench.board.rows import Row
from bench.report.cells import NONE, Cell, Column, count, number, percent, text, time
from bench.report.plots import distances
from bench.report.table import Report, Section, Table, table
from bench.report.words import listed, plural
from kernels.foreign.laws import THREADS
from kernels.trial import COMPANY

LEAD = (
    "Each was judged by the op's reference, bound and laws, and those that are right took turns at"
    " each shape, with inputs and outputs that nobody had seen. Equal ranks are a tie with the"
    " first of them: the interval of their times' ratio, at 95% for all pairs together and wider by"
    " what single starts differ, has 1 in it."
)


BATCH, FEW = "Batch invariant", 3
ALL = (
    "Whether each gives a token the bits that it has alone, whoever stands beside it in a batch,"
    " the same bits by any number of threads, and what else of its op's laws it breaks; and how far"
    " ordinary values take it from the reference, as a multiple of the derived bound of its"
    " numerics. A hollow mark is of one that is not batch invariant."
)


def report(rows: Sequence[Row], complaints: Sequence[str] = ()) -> Report:
    """The report of sorted rows; `complaints` list what could not be judged."""
    sections = [summary(rows)]
    for title, some in groupby(rows, lambda row: f"{row.op} {row.format}".strip()):
        here = list(some)
        races = groupby((row for row in here if row.shape), lambda row: row.race)
        tables = [_race(f"{_anchor(title)}-{i}", list(each)) for i, (_, each) in enumerate(races)]
        sections.append(Section(_anchor(title), title, _lead(here), tables=(*tables, _laws(here))))
    if complaints:
        sections.append(Section("left-out", "Left out", "", notes=tuple(complaints)))
    machines = ", ".join(dict.fromkeys(row.machine for row in rows))
    about = (("Machine", machines), ("Solutions", str(len({(r.op, r.name) for r in rows}))))
    return Report("Board of kernels", about, "", (), tuple(sections), "assay board", run=False)


def summary(rows: Sequence[Row]) -> Section:
    """One row for each solution of an op, over all formats, shapes and cache states."""
    once = {(row.op, _apart(row.name), row.format): row for row in rows}
    groups: dict[tuple[str, str], list[Row]] = {}
    for (op, name, _), row in once.items():
        groups.setdefault((op, name), []).append(row)

    def pace(some: Sequence[Row]) -> Cell:
        of = some[0].op, _apart(some[0].name)
        same = (row for row in rows if (row.op, _apart(row.name)) == of and row.rank)
        ratios = [row.ratio for row in same]
        return text(" to ".join(dict.fromkeys(f"{f(ratios):.3g}" for f in (min, max) if ratios)))

    columns: dict[str, Column] = {
        "Solution": lambda some: Cell(_apart(some[0].name)),
        "Op": lambda some: Cell(some[0].op),
        "Right": _rightness,
        "Error over bound": lambda some: _far(max(row.ordinary for row in some)),
        BATCH: lambda some: _keeps(some, COMPANY),
        "Any threads": lambda some: _keeps(some, (THREADS,)),
        "Breaks, too": lambda some: text(
            ", ".join(sorted({law for row in some for law in row.broken} - {*COMPANY, THREADS}))
        ),
        "Over the fastest": pace,
    }
    marks = [
        {"group": row.op, "name": _whose(row.name), "value": row.ordinary,
         "full": not set(COMPANY) & set(row.broken)}
        for row in once.values()
    ]  # fmt: skip
    caption = "Error over bound at ordinary values, by op; a mark for each format."
    plots = distances("plot-errors", caption, marks, "error over bound")
    faulty = {row.op for row in rows if row.broken or row.verdict not in ("passed", "other sizes")}
    whole = [op for op in dict.fromkeys(row.op for row in rows) if op not in faulty]
    notes = [f"All are right and keep all laws of {', '.join(whole)}."] if whole and faulty else []
    notes += [
        f"{_apart(row.name)}: {row.why}."
        for row in once.values()
        if row.verdict == "wrong" and row.ordinary <= 1 and row.why
    ]  # right at ordinary values, so the table alone would not tell why
    shown = [some for some in groups.values() if some[0].op in faulty or not faulty]
    caption = "Every solution" + (
        " of ops where somebody breaks something" if whole and faulty else ""
    )
    found = table("summary", caption, shown, columns, top=0)
    return Section("summary", "Who keeps what", ALL, plots, (found.with_what_there_is(),), notes)


def _apart(name: str) -> str:
    """The name of our kernel without its cache state, and of a function without its file's
    folder."""
    return name.removesuffix(", cold").removesuffix(", hot")


def _whose(name: str) -> str:
    """The author: ggml of ggml_ops.c:relu, assay of assay generic."""
    return re.split(r"[_ ]", Path(name.partition(":")[0]).stem)[0]


def _far(most: float) -> Cell:
    return number(most, "at most") if math.isfinite(most) else Cell("not finite", tone="bad")


def _rightness(some: Sequence[Row]) -> Cell:
    right = sum(row.verdict in ("passed", "other sizes") for row in some)
    tone, why = ("good", "") if right == len(some) else ("bad", some[0].why)
    if len(some) > 1:
        return text(f"{right} of {len(some)} formats", tone, why)
    return text("yes" if right else "no", tone, why)


def _keeps(some: Sequence[Row], laws: Sequence[str]) -> Cell:
    """Whether it keeps these laws, and in how many formats if not in all."""
    asked = [row for row in some if {*laws} & {*row.held, *row.broken}]
    broken = [row.format for row in asked if {*laws} & {*row.broken}]
    if not asked:
        return NONE
    if not broken:
        return text("yes", "good")
    if len(broken) == len(asked):
        return text("no", "bad")
    few = f"not {listed(broken)}" if len(broken) <= FEW else ""
    return text(few or f"not in {len(broken)} of {len(asked)} formats", "bad", listed(broken, 99))


def _anchor(title: str) -> str:
    return title.strip().replace(" ", "-")


def _lead(rows: Sequence[Row]) -> str:
    if not any(row.shape for row in rows):
        return "Judged by the op's reference, bound and laws; nobody was timed."
    right = {row.name for row in rows if row.rank}
    wrong = {row.name for row in rows} - right
    told = f"{plural(len(right), 'solution')} ranked, {len(wrong)} not. "
    return told + LEAD


def _race(anchor: str, rows: Sequence[Row]) -> Table:
    tied = Counter(row.rank for row in rows)
    first = rows[0]
    columns: dict[str, Column] = {
        "Rank": lambda row: _rank(row, tied),
        "Solution": "name",
        "Time": lambda row: time(row.seconds, plural(row.samples, "sample")) if row.rank else NONE,
        "Over the fastest": _ratio,
        "Of the limit": lambda row: percent(row.share) if row.share else NONE,
        "Verdict": lambda row: text(row.verdict, "good" if row.rank else "bad", row.why),
        "Why": "why",
    }
    caption = f"{first.shape.replace(',', ', ')}, on {first.machine}"
    caption += f", {plural(first.threads, 'thread')}"
    return table(anchor, caption, rows, columns).with_what_there_is()


def _rank(row: Row, tied: Counter[int]) -> Cell:
    if not row.rank:
        return NONE
    equals = "=" if tied[row.rank] > 1 else ""
    return Cell(f"{row.rank}{equals}", row.rank, "a tie: within the noise" if equals else "")


def _ratio(row: Row) -> Cell:
    if not row.rank:
        return NONE
    return Cell(f"{row.ratio:.2f} [{row.low:.2f}, {row.high:.2f}]", row.ratio, "95% interval")


def _laws(rows: Sequence[Row]) -> Table:
    """The laws that each solution keeps, whatever its speed."""
    once = {row.name: row for row in rows}
    columns: dict[str, Column] = {
        "Solution": "name", "Error over bound": "worst", "NMSE": "nmse", "Numerics": "numerics",
        "Laws held": lambda row: count(len(row.held), ", ".join(row.held)),
        "Laws broken": lambda row: text(", ".join(row.broken), "bad"),
    }  # fmt: skip
    anchor = f"{_anchor(f'{rows[0].op} {rows[0].format}')}-laws"
    return table(anchor, "Errors and laws", once.values(), columns).with_what_there_is()
