"""The section on earlier runs: speed over time."""

from collections.abc import Iterator, Sequence

import pandas as pd

from bench.race.results import Run
from bench.report import lookup
from bench.report.cells import Cell
from bench.report.lookup import Measured, kind_of
from bench.report.plots import panels
from bench.report.table import Section, table

TOKENS = "tokens/s"
ENGINE, KERNELS = 5, 4  # panels of each kind
SHOWN = 40  # runs, the last ones
LEAD = (
    "The same measurements in every run on this CPU so far, oldest first; medians and"
    " quartiles. Only figures of one run were taken under one set of conditions: a step between"
    " two runs may be the machine's. “assay compare” tells which."
)


def section(run: Run, rows: pd.DataFrame, runs: Sequence[Run]) -> Section:
    """This run's key measurements in all earlier runs of this CPU."""
    past = [r for r in runs if kind_of(r) == kind_of(run) and r.when <= run.when][-SHOWN:]
    known = lookup.present(lookup.rows_of(past))
    known = known.assign(x=known["run"].map({r.run: float(i) for i, r in enumerate(past)}))
    by_key = dict(list(known.groupby("key", sort=False)))
    found = [_series(m, by_key[m.key]) for m in _chosen(rows) if m.key in by_key]
    found = [series for series in found if len(series) > 1]
    if not found:
        return Section("history", "History", LEAD)
    marks = pd.concat(_plotted(found))
    ticks = {float(i): r.conditions.commit[:7] or r.when[:10] for i, r in enumerate(past)}
    plots = panels("plot-history", "Speed over commits, higher is better", marks, "", ticks)
    series = pd.concat(found).groupby(["measurement", "unit"], sort=False)["value"]
    made = table(
        "history",
        "The first run and this one",
        series.agg(["size", "first", "last"]).reset_index().itertuples(),
        {
            "Measurement": "measurement", "Unit": "unit",
            "Runs": "size", "First": "first", "Now": "last",
            "Change": lambda s: Cell(f"{100 * (s.last / s.first - 1):+.1f}%", s.last / s.first - 1),
        },
    )  # fmt: skip
    return Section("history", "History", LEAD, plots, (made,))


def _chosen(rows: pd.DataFrame) -> Iterator[Measured]:
    """Generation and prompt of every model; decode and prompt of each format's best kernel."""
    yield from lookup.main_duels(lookup.duels(rows))["ours"].dropna()
    linear = lookup.our_ops(rows)
    linear = linear[linear["test"] == "linear"]
    for tokens in (1, 512):
        of_size = linear["shape"].str.startswith(f"tokens={tokens},")
        best = lookup.largest(linear[of_size]).sort_values("median", kind="stable")
        yield from best.drop_duplicates("format").itertuples()


def _plotted(found: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    """The first ones of the engine and the first ones of kernels."""
    engine = [series for series in found if series["unit"].iloc[0] == TOKENS]
    kernels = [series for series in found if series["unit"].iloc[0] != TOKENS]
    return engine[:ENGINE] + kernels[:KERNELS]


def _series(wanted: Measured, known: pd.DataFrame) -> pd.DataFrame:
    """Marks of one measurement's speed in every run that has it."""
    unit, title = lookup.unit_of(wanted), f"{wanted.model} {wanted.test}"
    if unit != TOKENS:
        title = f"{wanted.test} {wanted.format} {wanted.variant}\n{wanted.size}, {wanted.cache}"
    once = known.drop_duplicates("run", keep="last").sort_values("x")
    marks = [{"x": m.x, **lookup.mark(m, lookup.done(m, unit))} for m in once.itertuples()]
    about = {"name": "assay", "title": f"{title}\n{unit}", "unit": unit}
    return pd.DataFrame(marks).assign(**about, measurement=title.replace("\n", " "))
