"""The section on drafts."""

from collections.abc import Sequence

from bench.ratio import ratio
from bench.report.lookup import engine_model
from bench.report.table import NONE, Cell, Row, Section, Table, number, percent, plural, text
from bench.results import Measurement, Run
from bench.speculation.contest import A_STEP, BENCH, TOGETHER
from bench.speculation.sparse import UNION

TITLE = "Speculative decoding"
LEAD = (
    "Ways to write, all of a table in turns; a ratio above 1 means fewer milliseconds than the"
    " table's first row, in brackets its 95% bootstrap interval. Rows named by a number of tokens"
    " are steps that verify so many, and cost more than the first."
)
COLUMNS = ("Way", "ms", "Times the first", "Tokens a step")
UNIONS = ("Tokens", "Neurons they need together")


def section(run: Run) -> Section:
    """A table for each race, and for each model whose neurons were counted."""
    races: dict[str, list[Measurement]] = {}
    for m in run.measurements:
        if m.bench == BENCH:
            races.setdefault(m.rivals or f"{m.model} {m.shape}", []).append(m)
    tables = tuple(_table(i, rows) for i, rows in enumerate(races.values()))
    return Section("speculation", TITLE, LEAD, tables=tables)


def _table(number: int, found: Sequence[Measurement]) -> Table:
    first = found[0]
    caption = f"{engine_model(first.model)}: {first.shape}, on {plural(first.threads, 'thread')}"
    if first.shape == UNION:
        shares = tuple((text(m.test), percent(m.median)) for m in found)
        return Table(f"speculation-{number}", caption, UNIONS, shares, top=len(shares))
    steps = {m.test.removesuffix(A_STEP): m.median for m in found if m.test.endswith(A_STEP)}
    ways = [m for m in found if not m.test.endswith(A_STEP)]
    rows = tuple(_row(m, ways[0], steps.get(m.test)) for m in ways)
    return Table(f"speculation-{number}", caption, COLUMNS, rows, top=len(rows))


def _row(m: Measurement, first: Measurement, tokens: float | None) -> Row:
    times = NONE
    if m is not first:
        found = ratio(first.samples, m.samples, together=TOGETHER)
        times = Cell(f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]", found.value)
    return text(m.test), number(1e3 * m.median), times, number(tokens) if tokens else NONE
