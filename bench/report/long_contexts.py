"""The section on steps after a long text: time, bytes and quality of each method by budget."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from bench.contenders.contender import OURS
from bench.race.ratio import ratio
from bench.report.cells import Cell, Column, number, percent, places, text
from bench.report.lookup import absences, present, times
from bench.report.needle import ANSWERED, PERPLEXITY, told
from bench.report.needle import BENCH as NEEDLE
from bench.report.needle import FULL as ALL_CELLS
from bench.report.plots import panels
from bench.report.table import Plot, Section, table
from bench.report.words import plural

BENCH = "long contexts"
STEP, READ, CACHE, TIDYING, BOOKKEEPING = "step", "read", "cache", "to evict", "bookkeeping"
FULL, PEER = ALL_CELLS, "llama.cpp"
KNOWN = [READ, CACHE, TIDYING, BOOKKEEPING, ANSWERED, PERPLEXITY]  # fields besides times
TOGETHER = 3  # rounds that are resampled together
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
    """One table, and plots of speed and of bytes against budget. `found_again` are the rows of a
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
    return Section("long-contexts", TITLE, LEAD, _plots(ways), (made,), absences(rows, BENCH))


def _known(rows: pd.DataFrame) -> pd.DataFrame:
    """By method and budget, known facts besides times."""
    mine = present(rows, bench=BENCH, contender=OURS)
    mine = mine[mine["test"] != STEP]
    wide = mine.pivot_table("median", ["variant", "shape"], "test")
    return wide.reindex(columns=KNOWN[:4])


def _quality(rows: pd.DataFrame) -> pd.DataFrame:
    """By method and budget, the share of questions answered and the perplexity."""
    wanted = [ANSWERED, PERPLEXITY]
    if not len(rows):
        return pd.DataFrame(columns=wanted)
    mine = present(rows, bench=NEEDLE)
    mine = mine.assign(test=mine["test"].str.split().str[0])
    return mine.pivot_table("median", ["variant", "shape"], "test").reindex(columns=wanted)


def _ways(steps: pd.DataFrame, known: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """All cells first and llama.cpp, over the rounds of all races, then each method by budget: its
    measurements, and its ratios to these two in turns."""
    records = steps.to_dict("records")
    full, peer = (
        {row["rivals"]: row for row in records if row["variant"] == name} for name in (FULL, PEER)
    )
    together = [rivals for rivals in full if rivals in peer] or [*full]
    whole, theirs = (_all_rounds([of[r] for r in together if r in of]) for of in (full, peer))
    yield _way(whole, known, None, theirs)
    if theirs:
        yield _way(theirs, known, whole, None)
    for row in records:
        if row["variant"] not in (FULL, PEER):
            yield _way(row, known, full[row["rivals"]], peer.get(row["rivals"]))


def _all_rounds(rows: list[Any]) -> Any:
    """One row of the samples of these, race after race; None where there are none."""
    samples = tuple(sample for row in rows for sample in row["samples"])
    return {**rows[0], "samples": samples, "median": float(np.median(samples))} if rows else None


def _way(row: Any, known: pd.DataFrame, full: Any, peer: Any) -> dict[str, Any]:
    """A row's fields, with ratios to all cells and llama.cpp where they exist."""
    key = row["variant"], row["shape"]
    found: dict[str, Any] = dict.fromkeys(KNOWN, np.nan)
    if row["contender"] == OURS and key in known.index:
        found |= known.loc[key].to_dict()
    for name, other in (("all", full), ("peer", peer)):
        taken = other and other["samples"]
        found[name] = ratio(taken, row["samples"], together=TOGETHER) if taken else None
    about = {"name": row["variant"], "budget": float(row["shape"].removeprefix("budget="))}
    bounds = {"bytes": row["bytes"] or np.nan, "bound": row["limit_seconds"] or np.nan}
    return about | bounds | {"seconds": row["median"]} | found


def _plots(ways: list[dict[str, Any]]) -> list[Plot]:
    """Time and its bound by budget, a panel for each method, all cells at the end of each; and
    bytes held and read, a line for each method."""
    full = next(way for way in ways if way["name"] == FULL)
    names = dict.fromkeys(way["name"] for way in ways if way["budget"] < 1)
    if not names:
        return []
    places = {budget: i for i, budget in enumerate(sorted({way["budget"] for way in ways}))}
    ticks = {float(place): told(budget) for budget, place in places.items()}
    own = [way for name in names for way in ways if way["name"] == name]
    own += [{**full, "name": name} for name in names]
    alone = [way for way in ways if way["name"] not in names and way["budget"] == 1 and way["all"]]
    speed = [
        {"title": way["name"], "name": by, "x": places[way["budget"]], "value": 1e3 * way[what]}
        for way in own
        for by, what in (("assay", "seconds"), ("bound", "bound"))
    ]
    size = [
        {"title": title, "name": way["name"], "x": places[way["budget"]], "value": way[what] / MB}
        for way in (*own, *alone)
        for title, what in (("held", CACHE), ("a token reads", READ))
    ]
    axis = "of the text"
    return [
        *panels("plot-speed", SPEED, speed, axis, ticks),
        *panels("plot-bytes", SIZE, size, axis, ticks),
    ]
