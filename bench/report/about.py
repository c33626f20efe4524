"""The headline and the conditions: what was measured, where, when, and how far to trust it."""

from datetime import datetime

from bench.report.certified import Standings, on_emulator, passed
from bench.report.lookup import duels, engine_model, family, kernel, main_duels, sizes, speed
from bench.report.lookup import ops as ops_of
from bench.report.peers import DEFAULT_PEER
from bench.report.table import KeyFigure, Section, Table, digits, listed, percent, plural, text
from bench.results import Run

MOST = 4  # key figures of speed


def day(when: str) -> str:
    """21 November 2026, 11:14 UTC."""
    try:
        moment = datetime.fromisoformat(when)
    except ValueError:
        return when
    return f"{moment.day} {moment:%B %Y, %H:%M} {moment.tzname() or ''}".strip()


def facts(run: Run, known: Standings) -> tuple[tuple[str, str], ...]:
    """What stands under the title."""
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


def key_figures(run: Run, known: Standings) -> tuple[KeyFigure, ...]:
    """The largest model against llama.cpp, the memory's share in decode, and certificates."""
    found = []
    chosen = main_duels(duels(run))
    largest = next((family(d.model)[0] for d in chosen if d.ours), "")
    mine = [d for d in chosen if d.ours and family(d.model)[0] == largest]
    fastest = list(dict.fromkeys(d.model for d in mine))[: MOST // 2]
    for duel in sorted(mine, key=lambda d: fastest.index(d.model) if d.model in fastest else 99):
        if duel.model not in fastest or duel.ours is None:
            continue
        against = duel.against(DEFAULT_PEER)
        detail = f"no {DEFAULT_PEER} beside it"
        if against:
            detail = f"{against.value:.2f}× {DEFAULT_PEER} [{against.low:.2f}, {against.high:.2f}]"
        rate = speed(duel.ours).value
        label = f"{duel.model} {duel.test}"
        found.append(KeyFigure(label, digits(rate), rate, "tokens/s", detail))
    decode = [
        m
        for m in ops_of(run)
        if m.test == "linear" and sizes(m).get("tokens") == 1 and m.cache == "cold"
        if m.share and m.limit.startswith("memory")
    ]
    if decode:
        best = max(decode, key=lambda m: m.share)
        share = percent(best.reached).text
        found.append(KeyFigure("Memory bandwidth in decode", share, best.share, "", kernel(best)))
    good, able = passed(known)
    words = f"of {able} that this machine can run"
    found.append(KeyFigure("Kernels certified", f"{good:,}", good, "", words))
    return tuple(found)


def conditions(run: Run) -> Section:
    """All that a figure depends on, and what was thrown out."""
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
    table = Table(
        "conditions",
        "What the run ran on",
        ("Condition", "Value"),
        tuple((text(name), text(value)) for name, value in rows.items()),
        top=len(rows),
    )
    doubted = [(m, m.note or m.impossible) for m in run.measurements if m.samples]
    rejected = tuple(
        (
            text(m.title.replace(engine_model(m.model) + ".gguf", engine_model(m.model))),
            text("rejected" if m.impossible else "counted", "bad" if m.impossible else ""),
            text(why),
        )
        for m, why in doubted
        if why
    )
    tables = [table]
    if rejected:
        caption = "Rejected or remarked upon; what is rejected is in no plot and no other table"
        columns = ("Measurement", "Verdict", "Why")
        tables.append(Table("rejected", caption, columns, rejected))
    lead = (
        "A figure is the median of at least five samples; sampling went on until the error of that"
        " median was under 1% or a cap was reached. Cold means that buffers were rotated beyond the"
        " last level of cache. Outputs were checked while the clock ran. What exceeds the machine's"
        " measured limit is an error of cost or clock, and rejected."
    )
    return Section("conditions", "Conditions", lead, tables=tuple(tables))
