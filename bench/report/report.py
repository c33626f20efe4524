"""The report on a run: its sections, in order."""

from collections.abc import Callable, Sequence

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
from bench.report.lookup import possible
from bench.report.table import Report, Section
from bench.results import Run
from kernels.planted import Planted
from kernels.tuning import Tuned

HEADLINE_LEAD = (
    "The longest prompt and generation of each model that ran, with an empty context before."
)


def report(
    run: Run,
    runs: Sequence[Run],
    known: Standings,
    bugs: Sequence[Planted] = (),
    tunings: Sequence[Tuned] = (),
    watch: Callable[[int, int], None] | None = None,
) -> Report:
    """On `run`; `runs` is its history, `known` what is certified, `bugs` what was planted,
    `tunings` what was measured of knobs. `watch` is told of sections done, of all."""
    full, run = run, possible(run)
    makers: tuple[Callable[[], Section], ...] = (
        lambda: headline(run),
        lambda: card.section(run),
        lambda: peers.section(run),
        lambda: ops.roofline_section(run),
        lambda: ops.matmul_section(run),
        lambda: peers.engine_section(run),
        lambda: steps.section(run),
        lambda: ops.costs_section(run),
        lambda: quality.section(run),
        lambda: sparsity.section(run),
        lambda: offload.section(run),
        lambda: speculation.section(run),
        lambda: tuned.section(tunings),
        lambda: history.section(run, runs),
        lambda: certified.section(known, run.conditions.machine),
        lambda: planted.section(bugs),
        lambda: about.conditions(full),
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
        figures=about.key_figures(run, known),
        sections=tuple(sections),
    )


def headline(run: Run) -> Section:
    table = peers.headline(run)
    notes = peers.absences(run)
    tables = (table,) if table.rows else ()
    return Section("headline", "Headline", HEADLINE_LEAD, tables=tables, notes=notes)
