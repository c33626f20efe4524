"""Sections on ops: beside the machine's limits, beside BLAS, and what comes before they run."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from bench.contenders.contender import OURS
from bench.limits import Limits
from bench.report.lookup import faster_cell, largest, mark, our_ops, present, sizes
from bench.report.plots import Ceiling, Line, Point, panels, roofline
from bench.report.table import (
    NONE,
    Cell,
    Column,
    Plot,
    Section,
    Table,
    count,
    duration,
    number,
    percent,
    plural,
    table,
    text,
    time,
)

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
    """Every op against what the machine allows, as far as that was probed."""
    found = our_ops(rows)
    limits, problem = _limits(probed)
    linear, others = found[found["test"] == "linear"], found[found["test"] != "linear"]
    plots = []
    for name, title, part in (("linear", "Linear", linear), ("others", OTHERS, others)):
        drawn = part[(part["operations"] > 0) & (part["bytes"] > 0)]
        points = [
            Point(m.variant, m.cache, m.operations / m.bytes, m.gflop_per_second)
            for m in drawn.itertuples()
        ]
        if points:
            caption = f"{title}: each point is a kernel at one size"
            plots.append(roofline(f"roofline-{name}", caption, points, ceilings(limits, part)))
    decode = linear["shape"].map(lambda shape: sizes(shape).get("tokens") == 1).astype(bool)
    parts = (
        ("decode", "Linear, one token", linear[decode]),
        ("prompt", "Linear, more tokens", linear[~decode]),
        ("others", OTHERS, others),
    )
    tables = [_table(f"ops-{name}", title, part) for name, title, part in parts if len(part)]
    notes = (f"No ceilings are drawn: {problem}.",) if problem and len(found) else ()
    return Section("rooflines", "Rooflines", LEAD, tuple(plots), tuple(tables), notes)


def _limits(probed: Mapping[str, Any]) -> tuple[Limits | None, str]:
    """The machine's, or why there are none."""
    if not probed:
        return None, "this run has none of the machine's limits"
    try:
        return Limits.from_json(probed), ""
    except ValueError as error:  # e.g. of a format of earlier days
        return None, str(error)


def ceilings(limits: Limits | None, rows: pd.DataFrame) -> list[Ceiling]:
    """Bandwidths and peaks for the threads that most of these ran on."""
    if limits is None:
        return []
    threads = int(rows["threads"].mode()[0])
    found = []
    if any(b.threads == threads for b in limits.bandwidths):
        for level in ("memory", *reversed([cache.level for cache in limits.caches])):
            cache = next((c for c in limits.caches if c.level == level), None)
            best = limits.bandwidth(threads, cache.reach(threads) if cache else None)
            found.append(Ceiling(f"{level} {best.kind}", slope=best.per_second / 1e9))
    for kind in dict.fromkeys(p.kind for p in limits.peaks if p.threads == threads):
        peak = limits.peak(kind, threads)
        name = f"{kind} peak ({peak.unit})" if peak.unit else f"{kind} peak"
        found.append(Ceiling(name, level=peak.per_second / 1e9))
    return found


def _table(anchor: str, title: str, rows: pd.DataFrame) -> Table:
    first = largest(rows)
    return table(
        anchor,
        f"{title}: time of a call, and its share of what binds it; the largest sizes first",
        pd.concat([first, rows.drop(first.index)]).itertuples(),
        {
            "Kernel": lambda m: text(m.name),
            "Shape": lambda m: text(m.size, note="" if m.model == "sweep" else m.model),
            "Cache": lambda m: text(m.cache),
            "Threads": lambda m: count(m.threads),
            "Time": lambda m: time(m.median, m.note),
            "GB/s": lambda m: number(m.gb_per_second),
            "GFLOP/s": lambda m: number(m.gflop_per_second),
            "Limit": lambda m: text(m.limit),
            "Share": lambda m: percent(m.reached) if m.share else NONE,
        },
        top=min(len(first), 14),
    ).on_threads()


def matmul_section(rows: pd.DataFrame) -> Section:
    """Square products over sizes, and float products of models beside BLAS."""
    linear = present(rows, bench="op", test="linear", phase="run")
    ours = linear["contender"] == OURS
    linear = linear.assign(by=linear["variant"].where(ours, linear["contender"]))
    squares = linear[linear["model"].map(lambda models: "sweep" in models.split(", ")).astype(bool)]
    hot = squares[squares["cache"] != "cold"]
    hot = hot if len(hot) else squares
    side = hot["shape"].map(lambda shape: sizes(shape).get("hidden", 0)).astype(int)
    hot = hot.assign(side=side)
    tables = (_sweep_table(hot), _blas_table(linear[ours], linear[~ours]))
    shown = tuple(one for one in tables if one.rows)
    return Section("matmul", "Matrix products", MATMUL_LEAD, _sweep_plot(hot), shown)


def _sweep_plot(squares: pd.DataFrame) -> tuple[Plot, ...]:
    """A panel for each format of ours, with those of others in every one."""
    lines = {}
    ours = squares["contender"] == OURS
    for stored in squares[ours]["format"].unique():
        shown = squares[~ours | (squares["format"] == stored)].sort_values("side", kind="stable")
        lines[stored] = [
            Line(
                name,
                tuple(part["side"]),
                tuple(mark(m, m.operations / 1e9) for m in part.itertuples()),
            )
            for name in squares["by"].unique()
            if len(part := shown[shown["by"] == name])
        ]
    ticks = {float(side): f"{side:g}" for side in sorted(squares["side"].unique())}
    caption = "GFLOP/s by the side of the square, log-log; median and quartiles"
    return (panels("plot-sweep", caption, lines, "side", ticks, log=True),) if lines else ()


def _sweep_table(squares: pd.DataFrame) -> Table:
    sides = sorted(squares["side"].unique())
    found = {(m.by, m.format, m.side): m for m in squares.itertuples()}

    def rate(side: int) -> Column:
        def cell(row: Any) -> Cell:
            m = found.get((row.by, row.format, side))
            return number(m.gflop_per_second, note=duration(m.median)) if m else NONE

        return cell

    caches = " and ".join(sorted({f"on {cache} caches" for cache in squares["cache"] if cache}))
    columns: dict[str, Column] = {"By": lambda m: text(m.by), "Format": lambda m: text(m.format)}
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
    """What comes before the first call: compile, certify, pack."""
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
            "Kernel": lambda m: text(m.Index),
            "Compile": lambda m: time(m.compile),
            "Certify": lambda m: time(m.certify),
            "Pack": lambda m: time(m.pack),
            "Pack, GB/s": lambda m: number(m.gb_per_second, note=str(m.shape)),
        },
    )
    return Section("costs", "Compile, certify, pack", lead, tables=(made,) if made.rows else ())
