"""Sections on the engine as a whole: its speed, and that of its peers."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd

from bench.contenders.contender import FAST, OURS
from bench.report.drawing import label
from bench.report.lookup import (
    BATCHED,
    Duel,
    Measured,
    duels,
    family,
    faster_cell,
    main_duels,
    mark,
    present,
)
from bench.report.plots import Mark, bars
from bench.report.table import (
    NONE,
    Cell,
    Column,
    Plot,
    Section,
    Table,
    count,
    digits,
    duration,
    number,
    percent,
    table,
    text,
    time,
)

KINDS = {"tg": "Generation", "pp": "Prompt"}
DEFAULT_PEER = "llama.cpp"
LEAD = (
    "Tokens a second at the median; a ratio above 1 means that Assay is faster. In brackets is"
    " its 95% bootstrap interval. All who are named in a row took turns within one run, unless"
    " a ratio is marked †. Bars end at the median, whiskers at the quartiles."
)
ENGINE_LEAD = (
    "What starting costs, and how speed changes with the prompt's length, the context that is"
    " there already, the number of sequences and of threads."
)


def section(rows: pd.DataFrame) -> Section:
    """Every test in which a peer took part, or should have."""
    found = duels(rows)
    who = list(dict.fromkeys(name for duel in found for name in duel.sides if name != OURS))
    raced = {name for duel in found for name, m in duel.sides.items() if m.samples} - {FAST}
    columns: dict[str, Column] = {
        "Model": lambda duel: text(duel.model),
        "Test": lambda duel: text(duel.test),
        "Threads": lambda duel: count(duel.threads),
        "Assay": lambda duel: _speed(duel.ours),
    }
    for peer in who:
        name = peer if peer in raced else label(peer)
        columns[name] = partial(_speed_of, peer)
        if peer in raced:
            columns[f"Assay ÷ {peer}"] = partial(_ratio, peer)
    made = table("peers", "Tokens a second, by model and test", found, columns, top=16)
    tables = (made.on_threads(),) if found else ()
    return Section(
        "peers", "Speed against peers", LEAD, plot("pp", found), tables, absences(rows)
    )  # fmt: skip


def plot(kind: str, found: Sequence[Duel]) -> tuple[Plot, ...]:
    """Everyone at the main tests of a kind, tg or pp."""
    parts: dict[str, dict[str, dict[str, Mark]]] = {}
    for duel in main_duels(found):
        sides = {name: m for name, m in duel.sides.items() if m.samples}
        if sides and duel.rated.kind == kind:
            name, stored = family(duel.model)
            group = ", ".join(filter(None, (stored, duel.test)))
            marks = {name: mark(m, m.tokens) for name, m in sides.items()}
            parts.setdefault(name, {})[group] = marks
    caption = f"{KINDS[kind]}: tokens a second, median and quartiles; longer is better"
    return (bars(f"plot-{kind}", caption, parts, "tokens/s"),) if parts else ()


def _speed(m: Measured | None) -> Cell:
    if m is None:
        return NONE
    if not m.samples:
        return Cell("absent", None, m.note, "quiet")
    note = "; ".join(filter(None, (f"{len(m.samples)} samples", m.settings, m.note)))
    return number(m.tokens_per_second, note=note)


def _speed_of(peer: str, duel: Duel) -> Cell:
    return _speed(duel.sides.get(peer))


def _ratio(peer: str, duel: Duel) -> Cell:
    return faster_cell(duel.ours, duel.sides.get(peer))


def absences(rows: pd.DataFrame) -> tuple[str, ...]:
    """Who did not take part, and why, once for each reason."""
    absent = rows[(rows["bench"] == "engine") & rows["median"].isna()]
    reasons = absent[["contender", "note"]].drop_duplicates()
    return tuple(
        f"{one.contender} is absent: {one.note or 'no reason was noted'}."
        for one in reasons.itertuples()
    )


def headline(rows: pd.DataFrame) -> Table:
    """The one table to quote: the longest plain tests of every model."""
    found = sorted(main_duels(duels(rows)), key=lambda duel: duel.rated.kind != "pp")
    shares = {id(duel): _memory_share(rows, duel) for duel in found}
    columns: dict[str, Column] = {
        "Model": lambda duel: text(duel.model),
        "Test": lambda duel: text(duel.test),
        "Assay": lambda duel: _speed(duel.ours),
        DEFAULT_PEER: partial(_speed_of, DEFAULT_PEER),
        "Ratio": partial(_ratio, DEFAULT_PEER),
    }
    if np.isfinite(list(shares.values())).any():
        columns["Memory bandwidth"] = lambda duel: percent(
            shares[id(duel)], "of what memory allows"
        )
    return table("headline", "Tokens a second; ratio with its 95% interval", found, columns, top=24)


def _memory_share(rows: pd.DataFrame, duel: Duel) -> float:
    """Of the memory's bandwidth while generating: the test's own, or that of the profiled step; NaN
    where it is not known."""
    if duel.rated.kind != "tg" or duel.ours is None:
        return np.nan
    steps = present(
        rows, bench="node", test="step", phase="run", model=duel.model, threads=duel.threads
    )
    for m in (duel.ours, *steps.itertuples()):
        if m.share and m.limit.startswith("memory"):
            return float(m.reached)
    return np.nan


def engine_section(rows: pd.DataFrame) -> Section:
    """Load, first tokens, batches, and every test that is not a race alone."""
    made = (_starts(rows), _batched(rows), _rates(rows))
    shown = tuple(one.on_threads() for one in made if one.rows)
    return Section("engine", "The engine", ENGINE_LEAD, tables=shown)


def _starts(rows: pd.DataFrame) -> Table:
    begun = rows["bench"].isin(["engine", "start"])
    begun &= rows["test"].str.startswith(("load", "first token"))
    return table(
        "starts",
        "Load and time to the first token; a cold start has nothing cached, a warm one has",
        present(rows[begun]).itertuples(),
        {
            "Model": lambda m: text(m.model),
            "Test": lambda m: text(_begun(m)),
            "By": lambda m: text(label(m.contender)),
            "Threads": lambda m: count(m.threads),
            "Median": lambda m: time(m.median),
            "Quartiles": lambda m: Cell(f"{duration(m.low)} – {duration(m.high)}", m.high - m.low),
            "Samples": lambda m: count(len(m.samples)),
        },
    )


def _begun(m: Measured) -> str:
    """A start says from which caches, and which part of it this is."""
    if m.bench != "start":
        return str(m.test)
    return f"{m.test} ({m.cache} start)" + ("" if m.phase == "run" else f": {m.phase}")


def _batched(rows: pd.DataFrame) -> Table:
    """As llama.cpp's batched-bench has it: prompt, generated and sequences, then three speeds."""
    engine = present(rows, bench="engine")
    asked = engine["test"].str.extract(f"^{BATCHED.pattern}$").fillna({3: "total"})
    engine = engine.assign(npp=asked[0], ntg=asked[1], npl=asked[2], part=asked[3])
    keys = ["model", "contender", "threads", "npp", "ntg", "npl"]
    speeds = engine.groupby([*keys, "part"], sort=False)["tokens_per_second"].first()
    wide = speeds.unstack(sort=False).reindex(columns=["prompt", "generation", "total"])
    return table(
        "batched",
        "Batched: tokens of prompt and generation a sequence, speeds in tokens a second",
        wide.reset_index().itertuples(),
        {
            "Model": lambda m: text(m.model),
            "By": lambda m: text(label(m.contender)),
            "Threads": lambda m: count(m.threads),
            "Prompt": lambda m: count(int(m.npp)),
            "Generated": lambda m: count(int(m.ntg)),
            "Sequences": lambda m: count(int(m.npl)),
            "Prompt speed": lambda m: number(m.prompt),
            "Generation speed": lambda m: number(m.generation),
            "Total": lambda m: number(m.total),
        },
    )


def _rates(rows: pd.DataFrame) -> Table:
    def place(duel: Duel) -> tuple[object, ...]:
        rated = duel.rated
        return duel.model, -duel.threads, rated.kind, rated.tokens, rated.depth

    return table(
        "rates",
        "Assay's tokens a second, by tokens and by depth (tokens in the cache before)",
        [duel for duel in sorted(duels(rows), key=place) if duel.ours],
        {
            "Model": lambda duel: text(duel.model),
            "Kind": lambda duel: text(KINDS[duel.rated.kind]),
            "Tokens": lambda duel: count(duel.rated.tokens),
            "Depth": lambda duel: count(duel.rated.depth),
            "Threads": lambda duel: count(duel.threads),
            "Tokens/s": lambda duel: number(duel.ours.tokens_per_second),
            "Quartiles": lambda duel: _quartiles(duel.ours),
            "Error": lambda duel: percent(duel.ours.error),
            "Samples": lambda duel: count(len(duel.ours.samples)),
        },
    )


def _quartiles(m: Measured) -> Cell:
    found = mark(m, m.tokens)
    return Cell(f"{digits(found.low)} – {digits(found.high)}", found.high - found.low)
