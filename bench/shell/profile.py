"""assay profile: the time of a step, op by op and node by node, against the machine's limits."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench.shell.display import about, grid, rate, share, still_bar, teller, title
from bench.shell.profile_streamed import profile_streamed
from engine.shell.command_line import options as o
from engine.shell.command_line.groups import Only, option

if TYPE_CHECKING:
    from rich.table import Table

    from bench.engine.profile import Profile
    from bench.machine.limits import Limits
    from bench.race.results import Measurement
    from engine.engine import Engine
    from engine.passes.count import Counted

OF_A_STEP = Only(
    "threads", "context", "kv_format", "kv_residual", "numerics", "variant", "strict", "sparse",
    "threshold", "union", "ram_budget", "activation", "kv_policy",
)  # fmt: skip
SLOW_BARRIER = 1e-6  # seconds: ten times one between two cores
MILLISECONDS_FROM = 0.1  # a step of so many seconds is told in ms, a shorter one in us


def profile(
    model: o.ModelName,
    *,
    prompt: int = option(0, "Tokens of a prompt step; 0: decode one.", "-p"),
    depth: int | None = option(None, "Tokens already in the cache; 128, or 0 with -p.", "-d"),
    nodes: bool = option(False, "Also a row for every node."),
    loading: Annotated[o.Loading, OF_A_STEP],
    as_json: o.Json = False,
) -> None:
    """Profile a step: where its time goes.

    The step decodes one token, or reads a prompt. A sparse model's neurons are counted in a
    separate run: how many are active, how many of those that fire were predicted (recall), and how
    many of the predicted ones fire (precision). Tokens are random: predictors do better on text
    that the model knows.

    With --ram-budget it is what a step reads from disk and waits for, block by block; with
    --activation, too, how many neurons are pinned. With --kv-policy it is, too, how many of the
    cells before the step each block has kept, and the bytes that attention reads of them.
    """
    from bench.engine.profile import neurons
    from bench.machine.conditions import conditions
    from engine.passes.count import count_neurons
    from engine.shell.show import loaded
    from engine.shell.terminal import stdout

    if prompt < 0:
        raise typer.BadParameter(f"--prompt must not be negative, got {prompt}")
    before = depth if depth is not None else 0 if prompt else 128
    busy = conditions().busy
    loading = replace(loading, batch=max(loading.batch, prompt))
    if loading.activation and not loading.ram_budget:
        raise typer.BadParameter("--activation says which neurons stay within a --ram-budget")
    if loading.ram_budget:
        if nodes:
            raise typer.BadParameter("--nodes and --ram-budget exclude each other")
        profile_streamed(model, prompt or 1, before, loading, as_json)
        return
    with loaded(model, loading, passes=(count_neurons,)) as engine:
        blocks = neurons(engine, prompt or 1, before)
        if not blocks:  # then nothing in it counts
            found, empty = timed(engine, prompt or 1, before)
    if blocks:
        with loaded(model, loading, quiet=True) as engine:
            found, empty = timed(engine, prompt or 1, before)
    if as_json:
        nothing = {"empty_step_seconds": {row.threads: row.median for row in empty}}
        counted = {"neurons": neurons_list(blocks, found.context)}
        print(json.dumps(as_dict(found) | nothing | counted | {"busy": busy}))
        return
    console = stdout()
    console.print(title(found.step, found.context), highlight=False)
    console.print()
    ops = [(row.kernel_name, calls, row) for calls, row in found.by_op()]
    console.print(table(found, ops))
    if nodes:
        console.print()
        console.print(table(found, [(node.shape, 0, node) for node in found.nodes]))
    if found.kept:
        console.print()
        console.print(kept_table(found))
        console.print()
    if blocks:
        console.print()
        console.print(neurons_table(blocks, found.context))
        console.print()
    for line in (of_nothing(empty), *notes(found, busy)):
        console.print(line, highlight=False)


def timed(engine: "Engine", tokens: int, depth: int) -> "tuple[Profile, list[Measurement]]":
    """The step's profile against the machine's limits, and what a step of nothing takes."""
    from bench.engine.profile import empty_steps

    found, _ = against_limits(engine, tokens, depth)
    return found, empty_steps(engine.model)


def against_limits(engine: "Engine", tokens: int, depth: int) -> "tuple[Profile, Limits]":
    """The step's profile, and the machine's limits that it is set against."""
    from bench.engine import profile as room
    from bench.machine.limits import limits

    with still_bar() as bar:
        threads, progress = [engine.model.team.n_threads], teller(bar, "profiling: repeats")
        machine = limits(threads, teller(bar, "probing the machine"))
        found = room.profile(engine, tokens, depth, limits=machine, progress=progress)
        if any(node.share > 1 for node in found.nodes):  # it is faster than it was
            machine = limits(threads, teller(bar, "probing the machine again"), again=True)
            found = room.profile(engine, tokens, depth, limits=machine, progress=progress)
    return found, machine


def as_dict(found: "Profile") -> dict[str, Any]:
    """The figures for programs; seconds throughout, shares as fractions."""

    def figures(row: "Measurement") -> dict[str, Any]:
        return {
            "op": row.test,
            "kernel": row.kernel_name,
            "seconds": row.median,
            "share_of_step": row.median / found.step.median,
            "bytes": row.bytes,
            "operations": row.operations,
            "gb_per_second": row.gb_per_second,
            "gflop_per_second": row.gflop_per_second,
            "limit": row.limit,
            "share_of_limit": row.share or None,
            "rejected": bool(row.impossible),
        }

    return {
        **about(found.step, found.context),
        "remainder_seconds": found.remainder,
        "interruptions_seconds": found.interruptions,
        "stamps_seconds": found.overhead_seconds,
        **({"kept": kept_list(found)} if found.kept else {}),
        "nodes": [{"node": node.shape, **figures(node)} for node in found.nodes],
        "ops": [{**figures(row), "calls": calls} for calls, row in found.by_op()],
    }


def kept_list(found: "Profile") -> list[dict[str, Any]]:
    """Every block's cells for programs, and the bytes that its attention reads and writes; apart of
    heads that keep others."""
    read: Counter[str] = Counter()
    for node in found.nodes:
        if node.test in ("attention", "attention_minicache"):
            name = node.shape.removesuffix(".attention")
            read[name if name in found.kept else name.rpartition(".")[0]] += round(node.bytes)
    return [
        {"block": block, "cells": cells, "attention_bytes": read[block]}
        for block, cells in found.kept.items()
    ]


def kept_table(found: "Profile") -> "Table":
    """A row for each block, and one for all of them."""
    from engine.shell.terminal import figures

    rows = [tuple(row.values()) for row in kept_list(found)]
    result = grid("cache", *figures("cells", "KB of attention"))
    _, cells, read = zip(*rows, strict=True)
    for block, count, size in (*rows, ("all", sum(cells), sum(read))):
        result.add_row(block, str(count), f"{size / 1e3:.1f}")
    return result


def neurons_list(blocks: "Mapping[str, Counted]", tokens: int) -> list[dict[str, Any]]:
    """Every block's shares for programs; null where there is nothing to divide by."""
    found = []
    for block, counted in blocks.items():
        shares = {"active_share": counted.active_share(tokens), "recall": counted.recall,
                  "precision": counted.precision}  # fmt: skip
        shown = {name: None if math.isnan(share) else share for name, share in shares.items()}
        found.append({"block": block, **shown})
    return found


def neurons_table(blocks: "Mapping[str, Counted]", tokens: int) -> "Table":
    """A row for each sparse block, and one for all of them."""
    from bench.engine.profile import joined
    from engine.shell.terminal import figures

    shares = figures("% active", "% recall", "% precision")
    result = grid(f"neurons, {tokens} random tokens", *shares)
    for row in neurons_list({**blocks, "all": joined(blocks.values())}, tokens):
        block, *found = row.values()
        result.add_row(block, *("" if share is None else f"{100 * share:.1f}" for share in found))
    return result


def table(found: "Profile", rows: "Sequence[tuple[str, int, Measurement]]") -> "Table":
    """A row for each kernel with its calls, or for each node (calls 0); then what is in none of
    them, and the step."""
    from engine.shell.terminal import figures

    unit, factor = ("ms", 1e3) if found.step.median >= MILLISECONDS_FROM else ("us", 1e6)
    counted = any(calls for _, calls, _ in rows)
    names = (*(["calls"] if counted else []), unit, "% step", "GB/s", "GFLOP/s")
    result = grid("kernel" if counted else "node", *figures(*names), "of the limit")

    def row(name: str, calls: int, seconds: float, *rest: str) -> None:
        count = [str(calls or "")] if counted else []
        part = 100 * seconds / found.step.median
        result.add_row(name, *count, f"{factor * seconds:.1f}", f"{part:.1f}", *rest)

    for name, calls, part in rows:
        rates = rate(part.gb_per_second), rate(part.gflop_per_second)
        row(name.replace("/cpu/", "/"), calls, part.median, *rates, share(part))
    row("interruptions", 0, found.interruptions)
    row("in no node", 0, found.remainder - found.interruptions)
    row("step", 0, found.step.median)
    return result


def of_nothing(empty: "Sequence[Measurement]") -> str:
    """What the step costs without its nodes."""
    from bench.report.words import plural

    calls, stages = (axis.partition("=")[2] for axis in empty[0].shape.split(","))
    times = ", ".join(
        f"{1e6 * row.median:.1f} us on {plural(row.threads, 'thread')}" for row in empty
    )
    return f"an empty step of {calls} calls in {stages} stages takes {times}"


def notes(found: "Profile", busy: str) -> list[str]:
    """What the table has left out, and what is wrong with it."""
    lines = [f"stamps cost {1e6 * found.overhead_seconds:.1f} us more, counted nowhere above"]
    if busy:
        lines.append(busy)
    barrier = found.overhead_seconds / max(1, len(found.nodes))
    if barrier > SLOW_BARRIER:
        lines.append(f"threads share a core: meeting takes them {1e6 * barrier:.1f} us each time")
    if rejected := found.rejected():
        lines.append(
            f"! {len(rejected)} nodes are faster than the machine can be, {rejected[0].shape} the"
            " first: an error of the op's cost, of the limit or of the clock; do not believe"
            " their rows"
        )
    return lines
