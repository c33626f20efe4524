"""The report on a run: its sections, in order; its head, and the run's conditions."""

from collections.abc import Callable, Sequence
from datetime import datetime

import pandas as pd

from bench.race.results import Run
from bench.report import (
    card,
    certified,
    history,
    machines,
    offload,
    ops,
    peers,
    quality,
    serving,
    speculation,
    steps,
)
from bench.report.cells import percent, text
from bench.report.certified import Standings, on_emulator, passed
from bench.report.lookup import duels, faster_cell, main_duels, our_ops, rows_of
from bench.report.peers import DEFAULT_PEER
from bench.report.table import KeyFigure, Report, Section, table
from bench.report.words import digits, listed, plural
from engine.progress import ProgressCallback
from kernels.planted import Planted
from kernels.tuning import Tuned

MOST = 4  # key figures of speed


def report(
    run: Run,
    runs: Sequence[Run],
    known: Standings,
    bugs: Sequence[Planted] = (),
    tunings: Sequence[Tuned] = (),
    progress: ProgressCallback | None = None,
) -> Report:
    """The report on `run`, with sections for what there is; `runs` is its history, `known` the
    certificates, `bugs` the planted ones, `tunings` the tuned knobs. `progress` receives sections
    done and in total."""
    rows = rows_of([run])
    makers: tuple[Callable[[], Section], ...] = (
        lambda: peers.headline(rows),
        lambda: card.section(rows),
        lambda: peers.section(rows),
        lambda: ops.roofline_section(rows, run.limits),
        lambda: ops.matmul_section(rows),
        lambda: peers.engine_section(rows),
        lambda: machines.section(run, runs),
        lambda: serving.section(rows),
        lambda: steps.section(rows),
        lambda: ops.costs_section(rows),
        lambda: quality.section(rows),
        lambda: quality.sparsity_section(rows),
        lambda: offload.section(rows),
        lambda: speculation.section(rows),
        lambda: certified.tuned_section(tunings),
        lambda: history.section(run, rows, runs),
        lambda: certified.section(known, run.conditions.machine),
        lambda: certified.planted_section(bugs),
        lambda: conditions(run),
    )
    sections = []
    for done, make in enumerate(makers, 1):
        sections.append(make())
        if progress:
            progress(done, len(makers))
    busy = run.conditions.busy
    return Report(
        title="Assay: kernels and engine, measured",
        about=facts(run, known),
        warning=f"Measured on {busy}. These figures are doubtful." if busy else "",
        figures=key_figures(rows, known),
        sections=tuple(s for s in sections if s.plots or s.tables or s.notes),
    )


def day(when: str) -> str:
    """21 November 2026, 11:14 UTC."""
    try:
        moment = datetime.fromisoformat(when)
    except ValueError:
        return when
    return f"{moment.day} {moment:%B %Y, %H:%M} {moment.tzname() or ''}".strip()


def facts(run: Run, known: Standings) -> tuple[tuple[str, str], ...]:
    """The facts under the title."""
    c = run.conditions
    commit = c.commit[:12] or "outside a checkout"
    emulated = f"{on_emulator(known)} certified by emulation alone, never enough to run on a GPU"
    return (
        ("Machine", f"{c.device}, {plural(c.cores, 'core')}"),
        ("When", day(run.when)),
        ("Commit", commit + (" with changes not committed" if c.dirty else "")),
        ("Run", run.run),
        *((("CUDA kernels", emulated),) if on_emulator(known) else ()),
    )


def key_figures(rows: pd.DataFrame, known: Standings) -> tuple[KeyFigure, ...]:
    """The largest model against llama.cpp, the share of memory bandwidth in decode, and
    certificates."""
    found = []
    chosen = main_duels(duels(rows))
    chosen = chosen[chosen["ours"].notna()]
    largest = (
        chosen[chosen["family"] == chosen["family"].head(1).squeeze()] if len(chosen) else chosen
    )
    for model in largest["model"].unique()[: MOST // 2]:
        for duel in largest[largest["model"] == model].itertuples():
            against = faster_cell(duel.ours, duel.sides.get(DEFAULT_PEER))
            detail = f"no {DEFAULT_PEER} beside it"
            if against.value is not None:
                detail = against.text.replace(" [", f"× {DEFAULT_PEER} [")
            rate, label = duel.ours.tokens_per_second, f"{duel.model} {duel.test}"
            found.append(KeyFigure(label, digits(rate), rate, "tokens/s", detail))
    decode = our_ops(rows)
    decode = decode[(decode["test"] == "linear") & (decode["cache"] == "cold")]
    decode = decode[
        decode["limit"].str.startswith("memory") & decode["shape"].str.startswith("tokens=1,")
    ]
    if len(decode):
        best = decode.loc[decode["share"].idxmax()]
        words = percent(best["reached"]).text
        found.append(
            KeyFigure("Memory bandwidth in decode", words, best["share"], "", best["name"])
        )
    good, able = passed(known)
    words = f"of {able} that this machine can run"
    found.append(KeyFigure("Kernels certified", f"{good:,}", good, "", words))
    return tuple(found)


def conditions(run: Run) -> Section:
    """Everything that a figure depends on, and what was rejected."""
    c = run.conditions
    rows = {
        "Commit": (c.commit or "none") + (" with changes not committed" if c.dirty else ""),
        "CPU": c.device,
        "Cores": f"{c.cores}, affinity to logical CPUs {listed([str(n) for n in c.affinity], 16)}",
        "Memory": f"{c.memory / 2**30:.1f} GiB",
        "Governor": c.governor,
        "Load before the run": f"{c.load:.2f}" + (f" ({c.busy})" if c.busy else ""),
        "Time taken by the host": f"{100 * c.steal:.2f}% since the machine started",
        "System": c.system,
        **{f"{name} version": version for name, version in c.versions.items()},
    }
    doubted = [m for m in run.measurements if m.samples and (m.note or m.impossible)]
    tables = (
        table(
            "conditions",
            "What the run ran on",
            rows.items(),
            {"Condition": lambda item: text(item[0]), "Value": lambda item: text(item[1])},
            top=0,
        ),
        table(
            "rejected",
            "Rejected or remarked upon; what is rejected is in no plot and no other table",
            doubted,
            {
                "Measurement": lambda m: text(m.title.replace(".gguf", "")),
                "Verdict": lambda m: text("rejected", "bad") if m.impossible else text("counted"),
                "Why": lambda m: text(m.note or m.impossible),
            },
        ),
    )
    lead = (
        "A figure is the median of at least five samples; sampling went on until the error of that"
        " median was under 1% or a cap was reached. Cold means that buffers were rotated beyond the"
        " last level of cache. Outputs were checked while the clock ran. What exceeds the machine's"
        " measured limit is an error of cost or clock, and rejected."
    )
    return Section("conditions", "Conditions", lead, tables=tables)
