"""The section on earlier runs: have we become faster?"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.report.lookup import duels, engine_model, largest, main_duels, mark, ops, shape, sizes
from bench.report.plots import Line, Mark, panels
from bench.report.table import Cell, Section, Table, count, number, text
from bench.results import Measurement, Run

TOKENS = "tokens/s"
PANELS = {True: 5, False: 4}  # of the engine, and of kernels
SHOWN = 40  # runs, the last ones
Index = Mapping[tuple[Any, ...], Measurement]


@dataclass(frozen=True, slots=True)
class Series:
    """One measurement's speed in every run that has it."""

    title: str
    unit: str
    runs: tuple[int, ...]
    marks: tuple[Mark, ...]

    @property
    def change(self) -> float:
        """The last over the first."""
        return self.marks[-1].value / self.marks[0].value


def section(run: Run, runs: Sequence[Run]) -> Section:
    """The key measurements of this run in all earlier ones of this CPU."""
    before = [
        r for r in runs if r.conditions.device == run.conditions.device and r.when <= run.when
    ]
    past = before[-SHOWN:]
    known = [{m.key: m for m in r.measurements} for r in past]
    found = [s for s in (_series(m, known) for m in _chosen(run)) if len(s.runs) > 1]
    lead = (
        "The same measurements in every run on this CPU so far, oldest first; medians and"
        " quartiles. Only figures of one run were taken under one set of conditions: a step between"
        " two runs may be the machine's. “assay compare” tells which."
    )
    if not found:
        return Section("history", "History", lead)
    lines = {
        f"{s.title}\n{s.unit}": [Line("assay", tuple(map(float, s.runs)), s.marks)]
        for s in _plotted(found)
    }
    ticks = {float(i): r.conditions.commit[:7] or r.when[:10] for i, r in enumerate(past)}
    plot = panels("plot-history", "Speed over commits, higher is better", lines, "", ticks)
    rows = tuple(
        (
            text(s.title.replace("\n", " ")), text(s.unit), count(len(s.runs)),
            number(s.marks[0].value), number(s.marks[-1].value),
            Cell(f"{100 * (s.change - 1):+.1f}%", s.change - 1),
        )
        for s in found
    )  # fmt: skip
    columns = ("Measurement", "Unit", "Runs", "First", "Now", "Change")
    table = Table("history", "The first run and this one", columns, rows)
    return Section("history", "History", lead, (plot,), (table,))


def _chosen(run: Run) -> Iterator[Measurement]:
    """Generation and prompt of every model; decode and prompt of each format's best kernel."""
    for duel in main_duels(duels(run)):
        if duel.ours:
            yield duel.ours
    for tokens in (1, 512):
        best: dict[str, Measurement] = {}
        linear = [m for m in ops(run) if m.test == "linear" and sizes(m).get("tokens") == tokens]
        for m in largest(linear):
            known = best.get(m.format)
            if known is None or m.median < known.median:
                best[m.format] = m
        yield from best.values()


def _plotted(found: Sequence[Series]) -> list[Series]:
    """The first ones of the engine and the first ones of kernels."""
    parts = {whole: [s for s in found if (s.unit == TOKENS) is whole] for whole in PANELS}
    return [s for whole, most in PANELS.items() for s in parts[whole][:most]]


def _series(wanted: Measurement, runs: Sequence[Index]) -> Series:
    unit, title = TOKENS, f"{engine_model(wanted.model)} {wanted.test}"
    if wanted.bench == "op":
        unit = "GFLOP/s" if sizes(wanted)["tokens"] > 1 else "GB/s"
        title = f"{wanted.test} {wanted.format} {wanted.variant}\n{shape(wanted)}, {wanted.cache}"
    places, marks = [], []
    for i, known in enumerate(runs):
        m = known.get(wanted.key)
        if m and m.samples and not m.impossible:
            amounts = {TOKENS: m.tokens, "GFLOP/s": m.operations / 1e9, "GB/s": m.bytes / 1e9}
            places.append(i)
            marks.append(mark(m, amounts[unit]))
    return Series(title, unit, tuple(places), tuple(marks))
