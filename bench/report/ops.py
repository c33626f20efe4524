"""Sections on ops: against the machine's limits, against BLAS, and their set-up costs."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from bench.contenders.contender import OURS
from bench.machine.limits import Limits
from bench.report.cells import NONE, Cell, Column, field, number, percent, text, time
from bench.report.lookup import faster_cell, largest, mark, our_ops, present, sizes
from bench.report.plots import panels, roofline
from bench.report.table import Plot, Section, Table, table
from bench.report.words import duration, plural

OTHERS = "All other ops"
BEFORE = {"compile": "Compile", "certify": "Certify", "pack": "Pack"}
LEAD = (
    "How near each kernel comes to what this machine can do. Lines are measured ceilings: a"
    " slope is the bandwidth of memory or of a cache, a level the peak of arithmetic. Hollow"
    " points ran on cold caches, filled ones on hot. Operations are those of a float product"
    " even where the arithmetic is int8. Ops that only move bytes are in the table alone."
)
MATMUL_LEAD = (
    "bench_matmul: square products from what a cache holds to what it does not. NumPy's BLAS"
    " multiplies in float32 and stands in every panel as the common measure."
)


def roofline_section(rows: pd.DataFrame, probed: Mapping[str, Any]) -> Section:
    """Every op against the machine's limits, as far as these were probed."""
    found = our_ops(rows)
    limits, problem = limits_of(probed)
    linear, others = found[found["test"] == "linear"], found[found["test"] != "linear"]
    plots = list[Plot]()
    for name, title, part in (("linear", "Linear", linear), ("others", OTHERS, others)):
        drawn = part[(part["operations"] > 0) & (part["bytes"] > 0)]
        if len(drawn):
            points = drawn.assign(
                x=drawn["operations"] / drawn["bytes"], y=drawn["gflop_per_second"]
            )
            caption = f"{title}: each point is a kernel at one size"
            above = ceilings(limits, part)
            plots += roofline(f"roofline-{name}", caption, points, *above)
    decode = linear["shape"].map(lambda shape: sizes(shape).get("tokens") == 1).astype(bool)
    tables = [
        _table("ops-decode", "Linear, one token", linear[decode]),
        _table("ops-prompt", "Linear, more tokens", linear[~decode]),
        _table("ops-others", OTHERS, others),
    ]
    notes = (f"No ceilings are drawn: {problem}.",) if problem and len(found) else ()
    return Section("rooflines", "Rooflines", LEAD, plots, tables, notes)


def limits_of(probed: Mapping[str, Any]) -> tuple[Limits | None, str]:
    """The machine's, or why there are none."""
    if not probed:
        return None, "this run has none of the machine's limits"
    try:
        return Limits.from_json(probed), ""
    except ValueError as error:  # e.g. of an old file format
        return None, str(error)


def ceilings(
    limits: Limits | None, rows: pd.DataFrame
) -> tuple[dict[str, float], dict[str, float]]:
    """Bandwidths in GB/s and peaks in GFLOP/s for the threads that most of these ran on."""
    slopes, peaks = dict[str, float](), dict[str, float]()
    if limits is None:
        return slopes, peaks
    threads = int(rows["threads"].mode()[0])
    if any(b.threads == threads for b in limits.bandwidths):
        for cache in (None, *reversed(limits.caches)):
            best = limits.bandwidth(threads, cache.reach(threads) if cache else None)
            slopes[f"{cache.level if cache else 'memory'} {best.kind}"] = best.per_second / 1e9
    for kind in dict.fromkeys(p.kind for p in limits.peaks if p.threads == threads):
        peak = limits.peak(kind, threads)
        name = f"{kind} peak ({peak.unit})" if peak.unit else f"{kind} peak"
        peaks[name] = peak.per_second / 1e9
    return slopes, peaks


def _table(anchor: str, title: str, rows: pd.DataFrame) -> Table:
    first = largest(rows)
    return table(
        anchor,
        f"{title}: time of a call, and its share of what binds it; the largest sizes first",
        pd.concat([first, rows.drop(first.index)]).itertuples(),
        {
            "Kernel": "name",
            "Shape": lambda m: text(m.size, note="" if m.model == "sweep" else m.model),
            "Cache": "cache", "Threads": "threads",
            "Time": lambda m: time(m.median, m.note),
            "GB/s": "gb_per_second", "GFLOP/s": "gflop_per_second", "Limit": "limit",
            "Share": lambda m: percent(m.reached) if m.share else NONE,
        },
        top=min(len(first), 14),
    ).on_threads()  # fmt: skip


def matmul_section(rows: pd.DataFrame) -> Section:
    """Square products over sizes, and models' float products beside BLAS."""
    linear = present(rows, bench="op", test="linear", phase="run")
    ours = linear["contender"] == OURS
    linear = linear.assign(by=linear["variant"].where(ours, linear["contender"]))
    squares = linear[linear["model"].map(lambda models: "sweep" in models.split(", ")).astype(bool)]
    hot = squares[squares["cache"] != "cold"]
    hot = hot if len(hot) else squares
    side = hot["shape"].map(lambda shape: sizes(shape).get("hidden", 0)).astype(int)
    hot = hot.assign(side=side)
    tables = (_sweep_table(hot), _blas_table(linear[ours], linear[~ours]))
    return Section("matmul", "Matrix products", MATMUL_LEAD, _sweep_plot(hot), tables)


def _sweep_plot(squares: pd.DataFrame) -> list[Plot]:
    """A panel for each format of ours, with those of others in every one."""
    squares = squares.sort_values("side", kind="stable")
    ours = squares["contender"] == OURS
    marks = [
        {"title": stored, "name": m.by, "x": m.side, **mark(m, m.operations / 1e9)}
        for stored in squares[ours]["format"].unique()
        for m in squares[~ours | (squares["format"] == stored)].itertuples()
    ]
    ticks = {float(side): f"{side:g}" for side in sorted(squares["side"].unique())}
    caption = "GFLOP/s by the side of the square, log-log; median and quartiles"
    return panels("plot-sweep", caption, marks, "side", ticks, log=True)


def _sweep_table(squares: pd.DataFrame) -> Table:
    sides = sorted(squares["side"].unique())
    found = {(m.by, m.format, m.side): m for m in squares.itertuples()}

    def rate(side: int) -> Column:
        def cell(row: Any) -> Cell:
            m = found.get((row.by, row.format, side))
            return number(m.gflop_per_second, duration(m.median)) if m else NONE

        return cell

    caches = " and ".join(sorted({f"on {cache} caches" for cache in squares["cache"] if cache}))
    columns: dict[str, Column] = {"By": "by", "Format": "format"}
    return table(
        "sweep",
        ", ".join(filter(None, ("GFLOP/s of square products, by side", caches))),
        squares[["by", "format"]].drop_duplicates().itertuples(),
        columns | {f"{side}²": rate(side) for side in sides},
        top=20,
    )


def _blas_table(ours: pd.DataFrame, theirs: pd.DataFrame) -> Table:
    """Our fastest products beside each rival's of the same size and format."""
    keys = ["format", "shape", "cache", "threads"]
    best = ours.sort_values("median", kind="stable").drop_duplicates(keys)
    fastest = {(m.format, m.shape, m.cache, m.threads): m for m in best.itertuples()}
    pairs = [
        (m, other)
        for other in theirs.itertuples()
        if (m := fastest.get((other.format, other.shape, other.cache, other.threads)))
    ]
    formats = " and ".join(sorted(theirs["format"].unique())) or "Float"
    return table(
        "blas",
        f"{formats} products beside BLAS, GFLOP/s",
        pairs,
        {
            "Shape": lambda pair: text(pair[0].size),
            "Variant": lambda pair: text(pair[0].variant),
            "Cache": lambda pair: text(pair[0].cache),
            "Assay": lambda pair: number(pair[0].gflop_per_second),
            "Rival": lambda pair: text(pair[1].contender),
            "GFLOP/s": lambda pair: number(pair[1].gflop_per_second),
            "Assay ÷ rival": lambda pair: faster_cell(*pair),
        },
    )


def costs_section(rows: pd.DataFrame) -> Section:
    """Costs before the first call: compile, certify, pack."""
    phases = {phase: largest(our_ops(rows, phase)).set_index("name") for phase in BEFORE}
    wide = pd.DataFrame({phase: found["median"] for phase, found in phases.items()})
    wide = wide.join(phases["pack"][["shape", "gb_per_second"]])
    wide = wide.iloc[np.argsort(-wide[list(BEFORE)].sum(axis=1), kind="stable")]
    sums = [
        f"{phase} {duration(found['median'].sum())} for {plural(len(found), 'kernel')}"
        for phase, found in phases.items()
        if len(found) and phase != "pack"
    ]
    lead = "None of this is in any figure above: kernels are compiled, certified and their weights"
    lead += " packed before the clock runs."
    lead += f" In all: {'; '.join(sums)}." if sums else ""
    made = table(
        "costs",
        "Before the first call: once a machine, but for packing, which is once a load",
        wide.itertuples(),
        {
            "Kernel": "Index",
            **{name: field(phase, time) for phase, name in BEFORE.items()},
            "Pack, GB/s": lambda m: number(m.gb_per_second, str(m.shape)),
        },
    )
    return Section("costs", "Compile, certify, pack", lead, tables=(made,))
