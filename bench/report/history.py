"""The section on earlier runs: have we become faster?"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from bench.report.lookup import (
    Measured,
    duels,
    largest,
    main_duels,
    mark,
    our_ops,
    present,
    rows_of,
    sizes,
)
from bench.report.plots import Line, Mark, panels
from bench.report.table import Cell, Section, count, number, table, text
from bench.results import Run

TOKENS = "tokens/s"
AMOUNTS = {TOKENS: ("tokens", 1.0), "GFLOP/s": ("operations", 1e9), "GB/s": ("bytes", 1e9)}
PANELS = {True: 5, False: 4}  # of the engine, and of kernels
SHOWN = 40  # runs, the last ones
LEAD = (
    "The same measurements in every run on this CPU so far, oldest first; medians and"
    " quartiles. Only figures of one run were taken under one set of conditions: a step between"
    " two runs may be the machine's. “assay compare” tells which."
)


@dataclass(frozen=True, slots=True)
class Series:
    """One measurement's speed in every run that has it."""

    title: str
    unit: str
    runs: tuple[float, ...]
    marks: tuple[Mark, ...]

    @property
    def change(self) -> float:
        """The last over the first."""
        return self.marks[-1].value / self.marks[0].value


def section(run: Run, rows: pd.DataFrame, runs: Sequence[Run]) -> Section:
    """The key measurements of this run, whose rows these are, in all earlier ones of this CPU."""
    device = run.conditions.device
    past = [r for r in runs if r.conditions.device == device and r.when <= run.when][-SHOWN:]
    chosen = list(_chosen(rows))
    known = rows_of(past)
    known = present(known[known["key"].isin([m.key for m in chosen])])
    found = [s for s in (_series(m, known, past) for m in chosen) if len(s.runs) > 1]
    if not found:
        return Section("history", "History", LEAD)
    lines = {f"{s.title}\n{s.unit}": [Line("assay", s.runs, s.marks)] for s in _plotted(found)}
    ticks = {float(i): r.conditions.commit[:7] or r.when[:10] for i, r in enumerate(past)}
    plot = panels("plot-history", "Speed over commits, higher is better", lines, "", ticks)
    made = table(
        "history",
        "The first run and this one",
        found,
        {
            "Measurement": lambda s: text(s.title.replace("\n", " ")),
            "Unit": lambda s: text(s.unit),
            "Runs": lambda s: count(len(s.runs)),
            "First": lambda s: number(s.marks[0].value),
            "Now": lambda s: number(s.marks[-1].value),
            "Change": lambda s: Cell(f"{100 * (s.change - 1):+.1f}%", s.change - 1),
        },
    )
    return Section("history", "History", LEAD, (plot,), (made,))


def _chosen(rows: pd.DataFrame) -> Iterator[Measured]:
    """Generation and prompt of every model; decode and prompt of each format's best kernel."""
    yield from (duel.ours for duel in main_duels(duels(rows)) if duel.ours)
    linear = our_ops(rows)
    linear = linear[linear["test"] == "linear"]
    for tokens in (1, 512):
        of_size = linear["shape"].str.startswith(f"tokens={tokens},")
        best = largest(linear[of_size]).sort_values("median", kind="stable")
        yield from best.drop_duplicates("format").itertuples()


def _plotted(found: Sequence[Series]) -> list[Series]:
    """The first ones of the engine and the first ones of kernels."""
    parts = {whole: [s for s in found if (s.unit == TOKENS) is whole] for whole in PANELS}
    return [s for whole, most in PANELS.items() for s in parts[whole][:most]]


def _series(wanted: Measured, known: pd.DataFrame, past: Sequence[Run]) -> Series:
    unit, title = TOKENS, f"{wanted.model} {wanted.test}"
    if wanted.bench == "op":
        unit = "GFLOP/s" if sizes(wanted.shape)["tokens"] > 1 else "GB/s"
        title = f"{wanted.test} {wanted.format} {wanted.variant}\n{wanted.size}, {wanted.cache}"
    amount, scale = AMOUNTS[unit]
    by_run = {m.run: m for m in known[known["key"] == wanted.key].itertuples()}
    there = [(float(i), by_run[run.run]) for i, run in enumerate(past) if run.run in by_run]
    marks = tuple(mark(m, getattr(m, amount) / scale) for _, m in there)
    return Series(title, unit, tuple(i for i, _ in there), marks)
