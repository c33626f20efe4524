"""The section on where the time of a decode step goes."""

from typing import Any

import pandas as pd

from bench.report.cells import NONE, Column, field, percent, time
from bench.report.lookup import present
from bench.report.plots import bars
from bench.report.table import Section, table
from bench.report.words import duration

WHOLE, REST = "step", "remainder"
MOST = 9  # bars a model
MODELS = 4  # in the plot
LEAD = (
    "One token is generated while the clock is read after every node. The remainder is what the"
    " step without those readings takes beyond the sum of its nodes: Python before and after, and"
    " waking the threads."
)
OF_OPS: dict[str, Column] = {
    "Model": "model", "Threads": "threads", "Op": "name", "Nodes": "nodes",
    "Time": field("seconds", time), "Of step": field("of_step", percent),
    "GB/s": "gb_per_second", "GFLOP/s": "gflop_per_second", "Of limit": field("reached", percent),
}  # fmt: skip
OF_NODES: dict[str, Column] = {
    "Model": "model", "Threads": "threads", "Node": "shape", "Kernel": "name",
    "Time": field("median", time), "Of step": field("of_step", percent), "GB/s": "gb_per_second",
    "Of limit": lambda m: percent(m.reached, m.limit) if m.share else NONE,
}  # fmt: skip


def section(rows: pd.DataFrame) -> Section:
    """By op and by node, with the remainder; steps of a prompt by op alone."""
    nodes = of_phase(rows, "run")
    ops, prompt = by_op(nodes), by_op(of_phase(rows, "prompt"))
    marks = [
        {"part": f"{model}, {duration(part['step'].iloc[0])} a step", **mark}
        for (model, _), part in list(ops.groupby(["model", "threads"], sort=False))[:MODELS]
        for mark in _marks(part)
    ]
    caption = "Share of a decode step, by op"
    plots = bars("plot-steps", caption, marks, "% of the step")
    each = nodes[~nodes["test"].isin([WHOLE, REST])]
    place = each.groupby(["model", "threads"], sort=False).ngroup()
    each = each.assign(place=place).sort_values(["place", "median"], ascending=[True, False])
    tables = (
        table("step-ops", "By op and format, the longest first", ops.itertuples(), OF_OPS, top=14),
        table("step-nodes", "By node, the longest first", each.itertuples(), OF_NODES, top=8),
        table("step-prompt", "A step of a prompt, by op", prompt.itertuples(), OF_OPS, top=14),
    )
    shown = [made.on_threads() for made in tables]
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
    """Nodes of one op, variant and format together, the longest first; the remainder, which is no
    node, last. `reached` is NaN where a limit is unknown."""
    parts = nodes[nodes["test"] != WHOLE]
    parts = parts.assign(limit_seconds=parts["limit_seconds"].where(parts["limit_seconds"] > 0))
    found = parts.groupby(["model", "threads", "name"], sort=False).agg(
        seconds=("median", "sum"),
        nodes=("test", "size"),
        bytes=("bytes", "sum"),
        operations=("operations", "sum"),
        allowed=("limit_seconds", lambda s: s.sum(skipna=False)),
        step=("step", "first"),
        of_step=("of_step", "sum"),
    )
    found = found.reset_index()
    found["reached"] = found["allowed"] / found["seconds"]
    for rate, amount in (("gb_per_second", "bytes"), ("gflop_per_second", "operations")):
        found[rate] = (found[amount] / found["seconds"] / 1e9).where(found[amount] > 0)
    found["rest"] = found["name"] == REST
    found["nodes"] = found["nodes"].astype(object).mask(found["rest"], "")
    found["place"] = found.groupby(["model", "threads"], sort=False).ngroup()
    return found.sort_values(["place", "rest", "seconds"], ascending=[True, True, False])


def _marks(ops: pd.DataFrame) -> list[dict[str, Any]]:
    """Bars in percent; the shortest ops are one bar, so that the plot stays small."""
    shares = {op.name: 100 * op.of_step for op in ops.itertuples()}
    rest = shares.pop(REST, None)
    shown = dict(list(shares.items())[: MOST - 1])
    if len(shares) > len(shown):
        shown["other ops"] = sum(shares.values()) - sum(shown.values())
    marks = [{"group": name, "name": "assay", "value": share} for name, share in shown.items()]
    return marks + [{"group": REST, "name": REST, "value": rest}] * (rest is not None)
