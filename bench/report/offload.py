"""The section on models that run within a budget of memory."""

from collections.abc import Sequence

from bench.offload.contest import BENCH, TOGETHER
from bench.offload.contests import IN_A_ROW, NAIVE, SCATTERED
from bench.ratio import ratio
from bench.report.lookup import engine_model, gigabytes
from bench.report.table import (
    NONE,
    Cell,
    Row,
    Section,
    Table,
    digits,
    number,
    percent,
    plural,
    text,
)
from bench.results import Measurement, Run

DISKS = {IN_A_ROW: "in a row", SCATTERED: "a neuron at a time"}
TITLE = "Models within a budget of memory"
LEAD = (
    "Steps of one token, all ways of a table in turns. Naive reads the whole model for each token"
    " and then computes. A ratio above 1 means fewer milliseconds than that, in brackets its 95%"
    " bootstrap interval. Bytes are those that came from disk; the last column is what these would"
    " take at the disk's best, as a share of the time taken."
)
COLUMNS = ("Way", "Budget", "ms a token", f"Times {NAIVE}", "MB a token", "Of the disk")


def section(run: Run) -> Section:
    """A table for each race: its ways, and below it what the disk gave."""
    races: dict[str, list[Measurement]] = {}
    for m in run.measurements:
        if m.bench == BENCH:
            races.setdefault(m.rivals, []).append(m)
    tables = tuple(_table(i, ways) for i, ways in enumerate(races.values()))
    notes = tuple(note for ways in races.values() for note in _notes(ways))
    return Section("offload", TITLE, LEAD, tables=tables, notes=notes)


def _table(number: int, ways: Sequence[Measurement]) -> Table:
    naive = next((m for m in ways if m.test == NAIVE and m.samples), None)
    rows = tuple(_row(m, naive) for m in ways if m.test not in DISKS and m.samples)
    caption = f"{_name(ways)}, on {plural(ways[0].threads, 'thread')}"
    return Table(f"offload-{number}", caption, COLUMNS, rows, top=len(rows))


def _row(m: Measurement, naive: Measurement | None) -> Row:
    settings = dict(word.split("=", 1) for word in m.settings.split(",") if "=" in word)
    times = NONE
    if naive and m is not naive:
        found = ratio(naive.samples, m.samples, together=TOGETHER)
        times = Cell(f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]", found.value)
    return (
        text(m.test, note=m.settings),
        text(settings.get("budget", "")),
        number(1e3 * m.median),
        times,
        number(m.bytes / 1e6) if m.bytes else NONE,
        percent(m.reached) if m.share else NONE,
    )


def _notes(ways: Sequence[Measurement]) -> list[str]:
    """Who is absent, and how fast the disk is."""
    told = [f"{DISKS[m.test]} at {digits(gigabytes(m))} GB/s" for m in ways if m.test in DISKS]
    disk = [f"{_name(ways)}: the disk reads {' and '.join(told)}."] if told else []
    absent = [m for m in ways if not m.samples and m.test not in DISKS]
    return disk + [f"{_name(ways)}: {m.test} is absent: {m.note}." for m in absent]


def _name(ways: Sequence[Measurement]) -> str:
    """The model, and what was raced."""
    return f"{engine_model(ways[0].model)}: {ways[0].shape}"
