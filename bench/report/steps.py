"""The section on where the time of a decode step goes."""

import math

from bench.report.lookup import engine_model, gigabytes, present
from bench.report.plots import Mark, bars
from bench.report.table import NONE, Row, Section, Table, count, number, percent, text, time
from bench.results import Measurement, Run

WHOLE, REST = "step", "remainder"
MOST = 9  # bars a model
MODELS = 4  # in the plot


def section(run: Run) -> Section:
    """By op and by node, with what is in none of them; steps of a prompt by op alone."""
    steps, prompts = (of_phase(run, phase) for phase in ("run", "prompt"))
    drawn: dict[str, dict[str, dict[str, Mark]]] = {}
    sums: list[Row] = []
    nodes: list[Row] = []
    for (model, threads), ms in steps.items():
        seconds = whole(ms)
        parts = _by_op(ms)
        shares = {name: sum(m.median for m in some) / seconds for name, some in parts.items()}
        drawn[f"{model}, {time(seconds).text} a step"] = _marks(shares)
        sums += [_sum(model, threads, name, some, seconds) for name, some in parts.items()]
        nodes += [
            _node(model, threads, m, seconds)
            for m in sorted(ms, key=lambda m: -m.median)
            if m.test not in (WHOLE, REST)
        ]
    in_prompts: list[Row] = [
        _sum(model, threads, name, some, whole(ms))
        for (model, threads), ms in prompts.items()
        for name, some in _by_op(ms).items()
    ]
    few = dict(list(drawn.items())[:MODELS])
    caption = "Share of a decode step, by op"
    plots = (bars("plot-steps", caption, few, "% of the step"),) if few else ()
    columns = (
        "Model", "Threads", "Op", "Nodes", "Time", "Of step", "GB/s", "GFLOP/s", "Of limit",
    )  # fmt: skip
    of_nodes = ("Model", "Threads", "Node", "Kernel", "Time", "Of step", "GB/s", "Of limit")
    tables = (
        Table("step-ops", "By op and format, the longest first", columns, tuple(sums), top=14),
        Table("step-nodes", "By node, the longest first", of_nodes, tuple(nodes), top=8),
        Table("step-prompt", "A step of a prompt, by op", columns, tuple(in_prompts), top=14),
    )
    shown = tuple(table.on_threads() for table in tables if table.rows)
    return Section("steps", "A decode step, node by node", LEAD, plots, shown)


Steps = dict[tuple[str, int], list[Measurement]]


def of_phase(run: Run, phase: str) -> Steps:
    """The nodes of every profiled step of this phase, by model and threads."""
    found: Steps = {}
    for m in present(run.measurements):
        if (m.bench, m.phase) == ("node", phase):
            found.setdefault((engine_model(m.model), m.threads), []).append(m)
    return found


LEAD = (
    "One token is generated while the clock is read after every node. The remainder is what the"
    " step without those readings takes beyond the sum of its nodes: Python before and after, and"
    " waking the threads."
)


def whole(ms: list[Measurement]) -> float:
    """Seconds of the step; the sum of its parts where it was not measured as one."""
    steps = [m.median for m in ms if m.test == WHOLE]
    return steps[0] if steps else sum(m.median for m in ms)


def _by_op(ms: list[Measurement]) -> dict[str, list[Measurement]]:
    """Nodes of one op, variant and format together, the longest first; the remainder last."""
    parts: dict[str, list[Measurement]] = {}
    for m in ms:
        if m.test not in (WHOLE, REST):
            name = " ".join(filter(None, (m.test, m.variant, m.format)))
            parts.setdefault(name, []).append(m)
    ordered = dict(sorted(parts.items(), key=lambda item: -sum(m.median for m in item[1])))
    rest = [m for m in ms if m.test == REST]
    return ordered | ({REST: rest} if rest else {})


def _marks(shares: dict[str, float]) -> dict[str, dict[str, Mark]]:
    """In percent; the shortest ops are one bar, so that the plot stays small."""
    names = [name for name in shares if name != REST]
    shown = {name: shares[name] for name in names[: MOST - 1]}
    if few := [shares[name] for name in names[MOST - 1 :]]:
        shown["other ops"] = sum(few)
    if REST in shares:
        shown[REST] = shares[REST]
    return {
        name: {REST if name == REST else "assay": Mark(100 * s, 100 * s, 100 * s)}
        for name, s in shown.items()
    }


def _sum(model: str, threads: int, name: str, ms: list[Measurement], whole: float) -> Row:
    seconds = sum(m.median for m in ms)
    if name == REST:
        return (
            text(model), count(threads), text(REST), NONE, time(seconds), percent(seconds / whole),
            NONE, NONE, NONE,
        )  # fmt: skip
    limits = [m.limit_seconds for m in ms]
    share = sum(limits) / seconds if all(limits) else math.nan
    moved, done = sum(m.bytes for m in ms), sum(m.operations for m in ms)
    return (
        text(model), count(threads), text(name), count(len(ms)), time(seconds),
        percent(seconds / whole), number(moved / seconds / 1e9) if moved else NONE,
        number(done / seconds / 1e9) if done else NONE, percent(share),
    )  # fmt: skip


def _node(model: str, threads: int, m: Measurement, whole: float) -> Row:
    kernel = " ".join(filter(None, (m.test, m.variant, m.format)))
    return (
        text(model), count(threads), text(m.shape), text(kernel), time(m.median),
        percent(m.median / whole), number(gigabytes(m)) if m.bytes else NONE,
        percent(m.reached, m.limit) if m.share else NONE,
    )  # fmt: skip
