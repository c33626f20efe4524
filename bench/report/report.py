"""The report on a run: its sections, in order."""

from collections.abc import Callable, Sequence

import pandas as pd

from bench.report import (
    about,
    card,
    certified,
    history,
    offload,
    ops,
    peers,
    planted,
    quality,
    sparsity,
    speculation,
    steps,
    tuned,
)
from bench.report.certified import Standings
from bench.report.lookup import duels, rows_of
from bench.report.table import Report, Section
from bench.results import Run
from kernels.planted import Planted
from kernels.tuning import Tuned

HEADLINE_LEAD = (
    "The longest prompt and generation of each model that ran, with an empty context before. Bars"
    " end at the median, whiskers at the quartiles."
)


def report(
    run: Run,
    runs: Sequence[Run],
    known: Standings,
    bugs: Sequence[Planted] = (),
    tunings: Sequence[Tuned] = (),
    watch: Callable[[int, int], None] | None = None,
) -> Report:
    """On `run`, with sections for what there is; `runs` is its history, `known` what is certified,
    `bugs` what was planted, `tunings` what was measured of knobs. `watch` is told of sections done,
    of all."""
    rows = rows_of([run])
    makers: tuple[Callable[[], Section], ...] = (
        lambda: headline(rows),
        lambda: card.section(rows),
        lambda: peers.section(rows),
        lambda: ops.roofline_section(rows, run.limits),
        lambda: ops.matmul_section(rows),
        lambda: peers.engine_section(rows),
        lambda: steps.section(rows),
        lambda: ops.costs_section(rows),
        lambda: quality.section(rows),
        lambda: sparsity.section(rows),
        lambda: offload.section(rows),
        lambda: speculation.section(rows),
        lambda: tuned.section(tunings),
        lambda: history.section(run, rows, runs),
        lambda: certified.section(known, run.conditions.machine),
        lambda: planted.section(bugs),
        lambda: about.conditions(run),
    )
    sections = []
    for done, make in enumerate(makers, 1):
        sections.append(make())
        if watch:
            watch(done, len(makers))
    busy = run.conditions.busy
    return Report(
        title="Assay: kernels and engine, measured",
        about=about.facts(run, known),
        warning=f"Measured on {busy}. These figures are doubtful." if busy else "",
        figures=about.key_figures(rows, known),
        sections=tuple(s for s in sections if s.plots or s.tables or s.notes),
    )


def headline(rows: pd.DataFrame) -> Section:
    table = peers.headline(rows)
    notes = peers.absences(rows)
    tables = (table,) if table.rows else ()
    picture = peers.plot("tg", duels(rows))
    return Section("headline", "Headline", HEADLINE_LEAD, picture, tables, notes)
