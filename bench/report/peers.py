"""Sections on the engine as a whole: its speed, and that of its peers."""

from collections.abc import Sequence

from bench.contenders.contender import FAST
from bench.report.drawing import label
from bench.report.lookup import (
    BATCHED,
    Duel,
    duels,
    engine_model,
    family,
    main_duels,
    peers,
    present,
    speed,
)
from bench.report.plots import Mark, bars
from bench.report.table import (
    NONE,
    Cell,
    Plot,
    Row,
    Section,
    Table,
    count,
    digits,
    number,
    percent,
    text,
    time,
)
from bench.results import Measurement, Run

KINDS = {"tg": "Generation", "pp": "Prompt"}
DEFAULT_PEER = "llama.cpp"


def section(run: Run) -> Section:
    """Every test in which a peer took part, or should have."""
    found = duels(run)
    plots = [
        plot
        for kind, title in KINDS.items()
        for plot in _plot(kind, title, [d for d in main_duels(found) if d.rated.kind == kind])
    ]
    who = peers(m for duel in found for m in duel.sides.values())
    raced = {who for duel in found for who, m in duel.sides.items() if m.samples} - {FAST}
    rows = []
    for duel in found:
        row = [
            text(duel.model), text(duel.test), count(duel.threads), _speed(duel.ours),
        ]  # fmt: skip
        for peer in who:
            row += [_speed(duel.sides.get(peer))]
            row += [_ratio(duel, peer)] if peer in raced else []
        rows.append(tuple(row))
    columns = ["Model", "Test", "Threads", "Assay"]
    for peer in who:
        columns += [peer, f"Assay ÷ {peer}"] if peer in raced else [label(peer)]
    caption = "Tokens a second, by model and test"
    table = Table("peers", caption, tuple(columns), tuple(rows), top=16)
    return Section(
        "peers",
        "Speed against peers",
        "Tokens a second at the median; a ratio above 1 means that Assay is faster. In brackets is"
        " its 95% bootstrap interval. All who are named in a row took turns within one run, unless"
        " a ratio is marked †. Bars end at the median, whiskers at the quartiles.",
        tuple(plots),
        (table.on_threads(),) if rows else (),
        absences(run),
    )


def _plot(kind: str, title: str, some: Sequence[Duel]) -> list[Plot]:
    parts: dict[str, dict[str, dict[str, Mark]]] = {}
    for duel in some:
        marks = {name: speed(m) for name, m in duel.sides.items() if m.samples}
        if marks:
            name, stored = family(duel.model)
            group = ", ".join(filter(None, (stored, duel.test)))
            parts.setdefault(name, {})[group] = marks
    if not parts:
        return []
    caption = f"{title}: tokens a second, median and quartiles; longer is better"
    return [bars(f"plot-{kind}", caption, parts, "tokens/s")]


def _speed(m: Measurement | None) -> Cell:
    if m is None:
        return NONE
    if not m.samples:
        return Cell("absent", None, m.note, "quiet")
    note = "; ".join(filter(None, (f"{len(m.samples)} samples", m.settings, m.note)))
    return number(speed(m).value, note=note)


def _ratio(duel: Duel, peer: str) -> Cell:
    found = duel.against(peer)
    if found is None or duel.ours is None:
        return NONE
    shared = duel.ours.rivals and duel.ours.rivals == duel.sides[peer].rivals
    tone = ("good" if found.value > 1 else "bad") if found.significant else ""
    words = f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]" + ("" if shared else " †")
    return Cell(words, found.value, "" if shared else "not measured in turns", tone)


def absences(run: Run) -> tuple[str, ...]:
    """Who did not take part, and why, once for each reason."""
    absent = [m for m in run.measurements if m.bench == "engine" and not m.samples]
    reasons = dict.fromkeys((m.contender, m.note or "no reason was noted") for m in absent)
    return tuple(f"{who} is absent: {why}." for who, why in reasons)


def headline(run: Run) -> Table:
    """The one table to quote: the longest plain tests of every model."""
    found = main_duels(duels(run))
    shares = {(d.model, d.test): _memory_share(run, d) for d in found}
    columns = ["Model", "Test", "Assay", DEFAULT_PEER, "Ratio"]
    columns += ["Memory bandwidth"] if any(shares.values()) else []
    rows: list[Row] = []
    for duel in sorted(found, key=lambda d: d.rated.kind != "pp"):
        row = [
            text(duel.model), text(duel.test), _speed(duel.ours),
            _speed(duel.sides.get(DEFAULT_PEER)), _ratio(duel, DEFAULT_PEER),
        ]  # fmt: skip
        if any(shares.values()):
            share = shares[duel.model, duel.test]
            row.append(percent(share, "of what memory allows") if share else NONE)
        rows.append(tuple(row))
    caption = "Tokens a second; ratio with its 95% interval"
    return Table("headline", caption, tuple(columns), tuple(rows), top=24)


def _memory_share(run: Run, duel: Duel) -> float:
    """Of the memory's bandwidth while generating: the test's own, or that of the profiled step."""
    if duel.rated.kind != "tg" or duel.ours is None:
        return 0.0
    steps = [
        m
        for m in present(run.measurements)
        if (m.bench, m.test, engine_model(m.model)) == ("node", "step", duel.model)
        and (m.phase, m.threads) == ("run", duel.threads)
    ]
    for m in (duel.ours, *steps):
        if m.share and m.limit.startswith("memory"):
            return m.reached
    return 0.0


def engine_section(run: Run) -> Section:
    """Load, first tokens, batches, and every test that is not a race alone."""
    tables = (_starts(run), _batched(run), _rates(run))
    return Section(
        "engine",
        "The engine",
        "What starting costs, and how speed changes with the prompt's length, the context that is"
        " there already, the number of sequences and of threads.",
        tables=tuple(table.on_threads() for table in tables if table.rows),
    )


def _starts(run: Run) -> Table:
    wanted = [
        m
        for m in present(run.measurements)
        if (m.bench in ("engine", "start")) and m.test.startswith(("load", "first token"))
    ]
    rows = [
        (
            text(engine_model(m.model)), text(_begun(m)), text(label(m.contender)),
            count(m.threads), time(m.median), _spread(m), count(len(m.samples)),
        )
        for m in wanted
    ]  # fmt: skip
    columns = ("Model", "Test", "By", "Threads", "Median", "Quartiles", "Samples")
    caption = "Load and time to the first token; a cold start has nothing cached, a warm one has"
    return Table("starts", caption, columns, tuple(rows))


def _begun(m: Measurement) -> str:
    """A start says from which caches, and which part of it this is."""
    if m.bench != "start":
        return m.test
    part = "" if m.phase == "run" else f": {m.phase}"
    return f"{m.test} ({m.cache} start){part}"


def _spread(m: Measurement) -> Cell:
    import numpy as np

    low, high = (float(q) for q in np.quantile(m.samples, (0.25, 0.75)))
    return Cell(f"{time(low).text} – {time(high).text}", high - low)


def _batched(run: Run) -> Table:
    """As llama.cpp's batched-bench has it: prompt, generated and sequences, then three speeds."""
    found: dict[tuple[str, str, int, tuple[int, ...]], dict[str, Measurement]] = {}
    for m in present(run.measurements):
        match = BATCHED.fullmatch(m.test) if m.bench == "engine" else None
        if match:
            npp, ntg, npl, part = *map(int, match.groups()[:3]), match[4] or "total"
            key = (engine_model(m.model), m.contender, m.threads, (npp, ntg, npl))
            found.setdefault(key, {})[part] = m
    rows = []
    for (model, who, threads, asked), parts in found.items():
        speeds = [
            _speed(parts.get(part)) for part in ("prompt", "generation", "total")
        ]  # fmt: skip
        rows.append((text(model), text(label(who)), count(threads), *map(count, asked), *speeds))
    columns = (
        "Model", "By", "Threads", "Prompt", "Generated", "Sequences", "Prompt speed",
        "Generation speed", "Total",
    )  # fmt: skip
    caption = "Batched: tokens of prompt and generation a sequence, speeds in tokens a second"
    return Table("batched", caption, columns, tuple(rows))


def _rates(run: Run) -> Table:
    rows = []
    in_order = sorted(
        duels(run), key=lambda d: (d.model, -d.threads, d.rated.kind, d.rated.tokens, d.rated.depth)
    )
    for duel in in_order:
        m = duel.ours
        if m:
            mark = speed(m)
            quartiles = Cell(f"{digits(mark.low)} – {digits(mark.high)}", mark.high - mark.low)
            rows.append((
                text(duel.model), text(KINDS[duel.rated.kind]), count(duel.rated.tokens),
                count(duel.rated.depth),
                count(duel.threads), number(mark.value), quartiles, percent(m.error),
                count(len(m.samples)),
            ))  # fmt: skip
    columns = (
        "Model", "Kind", "Tokens", "Depth", "Threads", "Tokens/s", "Quartiles", "Error",
        "Samples",
    )  # fmt: skip
    caption = "Assay's tokens a second, by tokens and by depth (tokens in the cache before)"
    return Table("rates", caption, columns, tuple(rows))
