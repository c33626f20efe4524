"""The section on where the time of a decode step goes."""

import math

import pandas as pd

from bench.report.lookup import present
from bench.report.plots import Mark, bars
from bench.report.table import NONE, Column, Section, count, duration, number, percent, table, text
from bench.report.table import time as lasting

WHOLE, REST = "step", "remainder"
MOST = 9  # bars a model
MODELS = 4  # in the plot
LEAD = (
    "One token is generated while the clock is read after every node. The remainder is what the"
    " step without those readings takes beyond the sum of its nodes: Python before and after, and"
    " waking the threads."
)
OF_OPS: dict[str, Column] = {
    "Model": lambda op: text(op.model),
    "Threads": lambda op: count(op.threads),
    "Op": lambda op: text(op.name),
    "Nodes": lambda op: count(op.nodes) if op.nodes else NONE,
    "Time": lambda op: lasting(op.seconds),
    "Of step": lambda op: percent(op.of_step),
    "GB/s": lambda op: number(op.bytes / op.seconds / 1e9) if op.bytes else NONE,
    "GFLOP/s": lambda op: number(op.operations / op.seconds / 1e9) if op.operations else NONE,
    "Of limit": lambda op: percent(op.allowed / op.seconds),
}
OF_NODES: dict[str, Column] = {
    "Model": lambda m: text(m.model),
    "Threads": lambda m: count(m.threads),
    "Node": lambda m: text(m.shape),
    "Kernel": lambda m: text(m.name),
    "Time": lambda m: lasting(m.median),
    "Of step": lambda m: percent(m.of_step),
    "GB/s": lambda m: number(m.gb_per_second),
    "Of limit": lambda m: percent(m.reached, m.limit) if m.share else NONE,
}


def section(rows: pd.DataFrame) -> Section:
    """By op and by node, with what is in none of them; steps of a prompt by op alone."""
    nodes = of_phase(rows, "run")
    ops = by_op(nodes)
    drawn = {}
    for (model, _), part in ops.groupby(["model", "threads"], sort=False):
        drawn[f"{model}, {duration(part['step'].iloc[0])} a step"] = _marks(part)
    few = dict(list(drawn.items())[:MODELS])
    caption = "Share of a decode step, by op"
    plots = (bars("plot-steps", caption, few, "% of the step"),) if few else ()
    each = nodes[~nodes["test"].isin([WHOLE, REST])]
    each = pd.concat(
        [
            part.sort_values("median", ascending=False, kind="stable")
            for _, part in each.groupby(["model", "threads"], sort=False)
        ]
        or [each]
    )
    prompt = by_op(of_phase(rows, "prompt"))
    tables = (
        table("step-ops", "By op and format, the longest first", ops.itertuples(), OF_OPS, top=14),
        table("step-nodes", "By node, the longest first", each.itertuples(), OF_NODES, top=8),
        table("step-prompt", "A step of a prompt, by op", prompt.itertuples(), OF_OPS, top=14),
    )
    shown = tuple(one.on_threads() for one in tables if one.rows)
    return Section("steps", "A decode step, node by node", LEAD, plots, shown)


def of_phase(rows: pd.DataFrame, phase: str) -> pd.DataFrame:
    """The nodes of every profiled step of this phase; `step` are the seconds of the whole, or the
    sum of its parts where it was not measured as one, and `of_step` a row's share of them."""
    nodes = present(rows, bench="node", phase=phase)
    keys = [nodes["model"], nodes["threads"]]
    total = nodes["median"].groupby(keys).transform("sum")
    whole = nodes["median"].where(nodes["test"] == WHOLE).groupby(keys).transform("first")
    step = whole.fillna(total)
    return nodes.assign(step=step, of_step=nodes["median"] / step)


def by_op(nodes: pd.DataFrame) -> pd.DataFrame:
    """Nodes of one op, variant and format together, the longest first; the remainder last. What
    the limits of them all allow is NaN where one is not known."""
    parts = nodes[nodes["test"] != WHOLE]
    parts = parts.assign(limit_seconds=parts["limit_seconds"].where(parts["limit_seconds"] > 0))
    sums = parts.groupby(["model", "threads", "name"], sort=False).agg(
        seconds=("median", "sum"),
        nodes=("test", "size"),
        bytes=("bytes", "sum"),
        operations=("operations", "sum"),
        allowed=("limit_seconds", lambda s: s.sum(skipna=False)),
        step=("step", "first"),
        of_step=("of_step", "sum"),
    )
    found = sums.reset_index()
    rest = found["name"] == REST
    found.loc[rest, "nodes"] = 0
    order = found.assign(rest=rest, place=found.groupby(["model", "threads"], sort=False).ngroup())
    order = order.sort_values(
        ["place", "rest", "seconds"], ascending=[True, True, False], kind="stable"
    )
    return found.loc[order.index]


def _marks(ops: pd.DataFrame) -> dict[str, dict[str, Mark]]:
    """In percent; the shortest ops are one bar, so that the plot stays small."""
    shares = {op.name: 100 * op.of_step for op in ops.itertuples()}
    rest = shares.pop(REST, math.nan)
    names = list(shares)
    shown = {name: shares[name] for name in names[: MOST - 1]}
    if few := [shares[name] for name in names[MOST - 1 :]]:
        shown["other ops"] = sum(few)
    if math.isfinite(rest):
        shown[REST] = rest
    return {
        name: {REST if name == REST else "assay": Mark(share, share, share)}
        for name, share in shown.items()
    }
