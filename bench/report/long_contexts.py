"""The section on steps behind a long text: time, bytes and quality of each method by budget."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from bench.contenders.contender import OURS
from bench.race.ratio import ratio
from bench.report.lookup import present, times
from bench.report.needle import ANSWERED, PERPLEXITY, told
from bench.report.needle import BENCH as NEEDLE
from bench.report.needle import FULL as ALL_CELLS
from bench.report.plots import panels
from bench.report.table import Cell, Column, Plot, Section, number, percent, places, table, text
from bench.report.words import plural

BENCH = "long contexts"
STEP, READ, CACHE, TIDYING, BOOKKEEPING = "step", "read", "cache", "to evict", "bookkeeping"
FULL, PEER = ALL_CELLS, "llama.cpp"
TOGETHER = 3  # rounds that are drawn as one
MB = 1e6
TITLE = "What a step behind a long text takes"
LEAD = (
    "One token behind a text that the cache holds, each method in turns with all cells and with"
    " llama.cpp: medians, and ratios with their 95% bootstrap intervals. The budget is the share of"
    " the text that is kept, or read. The bound is the time that reading the step's bytes, weights"
    " and cache, takes at the bandwidth that was probed here. To evict takes its time once, when a"
    " prompt has been read; bookkeeping is a share of every step. Answered and perplexity are of"
    " another model, which learned to answer (python -m bench.needle), at the same share of its"
    " texts."
)
SPEED = "Milliseconds of a step, beside the bound that its bytes set"
SIZE = "Megabytes of keys and values, by how much of the text is kept or read"


def section(rows: pd.DataFrame, found_again: pd.DataFrame) -> Section:
    """One table, and pictures of speed and of bytes against budget. `found_again` are the rows of a
    run of `bench.needle`, or none."""
    steps = present(rows, bench=BENCH, test=STEP)
    if not len(steps):
        return Section("long-contexts", TITLE, LEAD)
    known = pd.concat([_known(rows), _quality(found_again)], axis=1)
    ways = [*_ways(steps, known)]
    about, threads = steps.iloc[0], plural(int(steps["threads"].iloc[0]), "thread")
    held = int(about["settings"].removeprefix("held="))
    weights = (ways[0]["bytes"] - ways[0][READ]) / MB
    caption = (
        f"{about['model']}: a token behind {held:,}, on {threads}; {weights:.0f} MB of weights"
    )
    columns: dict[str, Column] = {
        "Method": lambda way: text(way["name"]),
        "Budget": lambda way: Cell(told(way["budget"]), way["budget"]),
        "MB held": lambda way: number(way[CACHE] / MB),
        "MB read": lambda way: number(way[READ] / MB),
        "ms": lambda way: number(1e3 * way["seconds"]),
        "Times all cells": lambda way: times(way["all"]),
        "Times llama.cpp": lambda way: times(way["peer"]),
        "Bound, ms": lambda way: number(1e3 * way["bound"]),
        "Of it": lambda way: percent(way["bound"] / way["seconds"]),
        "To evict, ms": lambda way: number(1e3 * way[TIDYING]),
        "Bookkeeping": lambda way: percent(way[BOOKKEEPING]),
        "Answered": lambda way: percent(way[ANSWERED]),
        "Perplexity": lambda way: places(way[PERPLEXITY], 4),
    }
    made = table("long-contexts", caption, ways, columns, top=0).with_what_there_is()
    missing = rows[(rows["bench"] == BENCH) & (rows["note"] != "")]
    notes = [
        f"{name} is absent: {note}."
        for name, note in missing.drop_duplicates("contender")[["contender", "note"]].values
    ]
    return Section("long-contexts", TITLE, LEAD, _plots(ways), (made,), notes)


def _known(rows: pd.DataFrame) -> pd.DataFrame:
    """By method and budget, what was found beside times."""
    mine = present(rows, bench=BENCH, contender=OURS)
    mine = mine[mine["test"] != STEP]
    wide = mine.pivot_table("median", ["variant", "shape"], "test")
    return wide.reindex(columns=[READ, CACHE, TIDYING, BOOKKEEPING])


def _quality(rows: pd.DataFrame) -> pd.DataFrame:
    """By method and budget, the share of questions answered and the perplexity."""
    wanted = [ANSWERED, PERPLEXITY]
    if not len(rows):
        return pd.DataFrame(columns=wanted)
    mine = present(rows, bench=NEEDLE)
    mine = mine.assign(test=mine["test"].str.split().str[0])
    return mine.pivot_table("median", ["variant", "shape"], "test").reindex(columns=wanted)


def _ways(steps: pd.DataFrame, known: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """All cells first and llama.cpp, of the rounds of all races, then each method by budget: what
    was measured of each, and what it was in turns with these two."""
    races = [part for _, part in steps.groupby("rivals", sort=False)]
    always = steps["variant"].eq(FULL) | steps["contender"].ne(OURS)
    both = [(_one(part, FULL), _one(part, PEER)) for part in races]
    beside = [(own, other) for own, other in both if other is not None]
    full = _all_rounds([own for own, _ in beside or both])
    peer = _all_rounds([other for _, other in beside]) if beside else None
    yield _way(full, known, None, peer)
    if peer is not None:
        yield _way(peer, known, full, None)
    for part, (own, other) in zip(races, both, strict=True):
        for _, row in part[~always[part.index]].iterrows():
            yield _way(row, known, own, other)


def _one(race: pd.DataFrame, variant: str) -> Any:
    rows = race[race["variant"] == variant]
    return rows.iloc[0] if len(rows) else None


def _all_rounds(rows: list[Any]) -> Any:
    """One row of the samples of these, race after race."""
    samples = tuple(sample for row in rows for sample in row["samples"])
    return {**rows[0], "samples": samples, "median": float(np.median(samples))}


def _way(row: Any, known: pd.DataFrame, full: Any, peer: Any) -> dict[str, Any]:
    """What is told of a row, beside all cells and llama.cpp where there are these to compare."""
    key = row["variant"], row["shape"]
    beside = known.loc[key] if row["contender"] == OURS and key in known.index else {}
    both = {"all": full, "peer": peer}
    return {
        "name": row["variant"],
        "budget": float(row["shape"].removeprefix("budget=")),
        "seconds": row["median"],
        "bytes": row["bytes"] or float("nan"),
        "bound": row["limit_seconds"] or float("nan"),
        **{
            name: None
            if other is None
            else ratio(other["samples"], row["samples"], together=TOGETHER)
            for name, other in both.items()
        },
        **{
            name: beside.get(name, float("nan"))
            for name in (READ, CACHE, TIDYING, BOOKKEEPING, ANSWERED, PERPLEXITY)
        },
    }


def _plots(ways: list[dict[str, Any]]) -> list[Plot]:
    """Time beside its bound by budget, a panel for each method, all cells the last place of each;
    and bytes held and read, a line for each method."""
    full = next(way for way in ways if way["name"] == FULL)
    names = dict.fromkeys(way["name"] for way in ways if way["budget"] < 1)
    budgets = sorted({way["budget"] for way in ways})
    places = {budget: float(i) for i, budget in enumerate(budgets)}
    ticks = {place: told(budget) for budget, place in places.items()}
    speed, size = list[dict[str, Any]](), list[dict[str, Any]]()
    for name in names:
        own = [*(way for way in ways if way["name"] == name), full]
        for way in own:
            x = places[way["budget"]]
            speed.append({"title": name, "name": "assay", "x": x, "value": 1e3 * way["seconds"]})
            speed.append({"title": name, "name": "bound", "x": x, "value": 1e3 * way["bound"]})
            for title, what in (("held", CACHE), ("a token reads", READ)):
                size.append({"title": title, "name": name, "x": x, "value": way[what] / MB})
    if not names:
        return []
    for way in ways:
        if way["name"] not in names and way["budget"] == 1 and way["all"]:
            size += [
                {"title": title, "name": way["name"], "x": places[1.0], "value": way[what] / MB}
                for title, what in (("held", CACHE), ("a token reads", READ))
            ]
    axis = "of the text"
    return [
        *panels("plot-speed", SPEED, speed, axis, ticks),
        *panels("plot-bytes", SIZE, size, axis, ticks),
    ]
