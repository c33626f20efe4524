"""Sections on the engine as a whole: its speed, and its peers'."""

from functools import partial

import pandas as pd

from bench.contenders.contender import FAST, OURS
from bench.report import lookup
from bench.report.cells import NONE, Cell, Column, count, field, number, percent, text, time
from bench.report.lookup import Measured, absences, faster_cell, mark, present
from bench.report.plots import bars, label
from bench.report.table import Plot, Section, Table, table
from bench.report.words import digits, duration

KINDS = {"tg": "Generation", "pp": "Prompt"}
BATCHED = r"pp(?P<npp>\d+)\+tg(?P<ntg>\d+) x(?P<npl>\d+)(?: (?P<part>prompt|generation))?"
BENCH, DEFAULT_PEER = "engine", "llama.cpp"
HEADLINE_LEAD = (
    "The longest prompt and generation of each model that ran, with an empty context before. Bars"
    " end at the median, whiskers at the quartiles."
)
LEAD = (
    "Tokens a second at the median; a ratio above 1 means that Assay is faster. In brackets is"
    " its 95% bootstrap interval. All who are named in a row took turns within one run, unless"
    " a ratio is marked †. Bars end at the median, whiskers at the quartiles."
)
ENGINE_LEAD = (
    "What starting costs, and how speed changes with the prompt's length, the context that is"
    " there already, the number of sequences and of threads."
)


def headline(rows: pd.DataFrame) -> Section:
    """The one plot and table to quote: the longest plain tests of every model."""
    found = lookup.duels(rows)
    tables, notes = (headline_table(rows, found),), absences(rows, BENCH)
    return Section("headline", "Headline", HEADLINE_LEAD, plot("tg", found), tables, notes)


def headline_table(rows: pd.DataFrame, found: pd.DataFrame) -> Table:
    """Prompts first; the share of memory bandwidth where it is known."""
    chosen = lookup.main_duels(found).sort_values("kind", kind="stable")
    columns: dict[str, Column] = {
        "Model": "model", "Test": "test", "Assay": field("ours", _speed),
        DEFAULT_PEER: partial(_speed_of, DEFAULT_PEER),
        "Ratio": partial(_ratio, DEFAULT_PEER),
        "Memory bandwidth": partial(_memory_share, rows),
    }  # fmt: skip
    made = table(
        "headline", "Tokens a second; ratio with its 95% interval", chosen.itertuples(), columns,
        top=24,
    )  # fmt: skip
    return made.with_what_there_is()


def section(rows: pd.DataFrame) -> Section:
    """Every test in which a peer took part, or should have."""
    found = lookup.duels(rows)
    who = dict.fromkeys(name for sides in found["sides"] for name in sides if name != OURS)
    raced = {name for sides in found["sides"] for name in sides if sides[name].samples} - {FAST}
    columns: dict[str, Column] = {
        "Model": "model", "Test": "test", "Threads": "threads", "Assay": field("ours", _speed),
    }  # fmt: skip
    for peer in who:
        columns[peer if peer in raced else label(peer)] = partial(_speed_of, peer)
        if peer in raced:
            columns[f"Assay ÷ {peer}"] = partial(_ratio, peer)
    caption = "Tokens a second, by model and test"
    made = table("peers", caption, found.itertuples(), columns, top=16).on_threads()
    notes = absences(rows, BENCH)
    return Section("peers", "Speed against peers", LEAD, plot("pp", found), (made,), notes)


def plot(kind: str, found: pd.DataFrame) -> list[Plot]:
    """Everyone at the main tests of a kind, tg or pp."""
    marks = []
    for duel in lookup.main_duels(found[found["kind"] == kind]).itertuples():
        name, stored = lookup.family(duel.model)
        place = {"part": name, "group": ", ".join(filter(None, (stored, duel.test)))}
        marks += [
            {**place, "name": who, **mark(m, m.tokens)}
            for who, m in duel.sides.items()
            if m.samples
        ]
    caption = f"{KINDS[kind]}: tokens a second, median and quartiles; longer is better"
    return bars(f"plot-{kind}", caption, marks, "tokens/s")


def _speed(m: Measured | None) -> Cell:
    if m is None:
        return NONE
    if not m.samples:
        return Cell("absent", None, m.note, "quiet")
    note = "; ".join(filter(None, (f"{len(m.samples)} samples", m.settings, m.note)))
    return number(m.tokens_per_second, note)


def _speed_of(peer: str, duel: Measured) -> Cell:
    return _speed(duel.sides.get(peer))


def _ratio(peer: str, duel: Measured) -> Cell:
    return faster_cell(duel.ours, duel.sides.get(peer))


def _memory_share(rows: pd.DataFrame, duel: Measured) -> Cell:
    """Share of memory bandwidth while generating: the test's own, or the profiled step's."""
    if duel.kind != "tg" or duel.ours is None:
        return NONE
    steps = present(
        rows, bench="node", test="step", phase="run", model=duel.model, threads=duel.threads
    )
    for m in (duel.ours, *steps.itertuples()):
        if m.share and m.limit.startswith("memory"):
            return percent(m.reached, "of what memory allows")
    return NONE


def engine_section(rows: pd.DataFrame) -> Section:
    """Load, first tokens, batches, and every test that is not only a race."""
    tables = [made.on_threads() for made in (_starts(rows), _batched(rows), _rates(rows))]
    return Section("engine", "The engine", ENGINE_LEAD, tables=tables)


def _starts(rows: pd.DataFrame) -> Table:
    """Starts with their cache state, and their parts."""
    begun = rows["bench"].isin(["engine", "start"])
    begun &= rows["test"].str.startswith(("load", "first token"))
    found = present(rows[begun])
    cold = found["test"] + " (" + found["cache"] + " start)"
    part = (": " + found["phase"]).mask(found["phase"] == "run", "")
    starts = found["bench"] == "start"
    return table(
        "starts",
        "Load and time to the first token; a cold start has nothing cached, a warm one has",
        found.assign(test=(cold + part).where(starts, found["test"])).itertuples(),
        {
            "Model": "model", "Test": "test", "By": field("contender", _by), "Threads": "threads",
            "Median": field("median", time),
            "Quartiles": lambda m: Cell(f"{duration(m.low)} – {duration(m.high)}", m.high - m.low),
            "Samples": lambda m: count(len(m.samples)),
        },
    )  # fmt: skip


def _by(contender: str) -> Cell:
    return text(label(contender))


def _batched(rows: pd.DataFrame) -> Table:
    """As in llama.cpp's batched-bench: prompt, generated and sequences, then three speeds."""
    engine = present(rows, bench="engine")
    asked = engine["test"].str.extract(f"^{BATCHED}$").dropna(subset="npl").fillna("total")
    asked = asked.astype({"npp": int, "ntg": int, "npl": int})
    keys = ["model", "contender", "threads", "npp", "ntg", "npl"]
    engine = engine.join(asked, how="inner")
    speeds = engine.groupby([*keys, "part"], sort=False)["tokens_per_second"].first()
    wide = speeds.unstack(sort=False).reindex(columns=["prompt", "generation", "total"])
    return table(
        "batched",
        "Batched: tokens of prompt and generation a sequence, speeds in tokens a second",
        wide.reset_index().itertuples(),
        {
            "Model": "model", "By": field("contender", _by), "Threads": "threads",
            "Prompt": "npp", "Generated": "ntg", "Sequences": "npl",
            "Prompt speed": "prompt", "Generation speed": "generation", "Total": "total",
        },
    )  # fmt: skip


def _rates(rows: pd.DataFrame) -> Table:
    def quartiles(ours: Measured) -> Cell:
        found = mark(ours, ours.tokens)
        low, high = found["low"], found["high"]
        return Cell(f"{digits(low)} – {digits(high)}", high - low)

    order = ["model", "threads", "kind", "amount", "depth"]
    found = lookup.duels(rows).sort_values(order, ascending=[True, False, True, True, True])
    return table(
        "rates",
        "Assay's tokens a second, by tokens and by depth (tokens in the cache before)",
        found[found["ours"].notna()].itertuples(),
        {
            "Model": "model", "Kind": lambda duel: text(KINDS[duel.kind]),
            "Tokens": "amount", "Depth": "depth", "Threads": "threads",
            "Tokens/s": lambda duel: number(duel.ours.tokens_per_second),
            "Quartiles": field("ours", quartiles),
            "Error": lambda duel: percent(duel.ours.error),
            "Samples": lambda duel: count(len(duel.ours.samples)),
        },
    )  # fmt: skip
