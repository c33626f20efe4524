"""The board as a report: a section for each op, a table for each shape and machine."""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from bench.board.rows import Row
from bench.report.table import (
    NONE,
    Cell,
    Column,
    Report,
    Section,
    Table,
    count,
    percent,
    plural,
    table,
    text,
    time,
)

LEAD = (
    "Each was judged by the op's reference, bound and laws, and those that are right took turns at"
    " each shape, with inputs and outputs that nobody had seen. Equal ranks are a tie with the"
    " first of them: the interval of their times' ratio, at 95% for all pairs together and wider by"
    " what single starts differ, has 1 in it."
)


def report(rows: Sequence[Row], complaints: Sequence[str] = ()) -> Report:
    """Of sorted rows; `complaints` are about what could not be judged."""
    sections = []
    for title, some in groupby(rows, lambda row: f"{row.op} {row.format}".strip()):
        here = list(some)
        races = groupby(here, lambda row: row.race)
        tables = [_race(f"{_anchor(title)}-{i}", list(each)) for i, (_, each) in enumerate(races)]
        sections.append(Section(_anchor(title), title, _lead(here), tables=(*tables, _laws(here))))
    if complaints:
        sections.append(Section("left-out", "Left out", "", notes=tuple(complaints)))
    machines = ", ".join(dict.fromkeys(row.machine for row in rows))
    about = (("Machine", machines), ("Solutions", str(len({(r.op, r.name) for r in rows}))))
    return Report("Board of kernels", about, "", (), tuple(sections))


def _anchor(title: str) -> str:
    return title.strip().replace(" ", "-")


def _lead(rows: Sequence[Row]) -> str:
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
    """What each holds, whatever its speed."""
    once = {row.name: row for row in rows}
    columns: dict[str, Column] = {
        "Solution": "name", "Error over bound": "worst", "NMSE": "nmse", "Numerics": "numerics",
        "Laws held": lambda row: count(len(row.held), ", ".join(row.held)),
        "Laws broken": lambda row: text(", ".join(row.broken), "bad"),
    }  # fmt: skip
    anchor = f"{_anchor(f'{rows[0].op} {rows[0].format}')}-laws"
    return table(anchor, "Errors and laws", once.values(), columns).with_what_there_is()
