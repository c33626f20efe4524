"""assay plan: print a model's nodes, their kernels, and where their outputs are."""

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from engine.shell.command_line import options as o
from engine.shell.command_line.groups import Only

if TYPE_CHECKING:
    from engine.model import Model

OF_THE_GRAPH = Only(
    "context", "batch", "kv_format", "kv_residual", "numerics", "device", "gpu_layers", "n_cpu_moe",
    "cpu_moe", "variant", "strict", "sparse", "threshold", "union",
)  # fmt: skip


def plan(
    model: o.ModelName,
    *,
    loading: Annotated[o.Loading, OF_THE_GRAPH],
    as_json: o.Json = False,
) -> None:
    """Print the nodes of a step in execution order."""
    from engine.shell.show import loaded

    with loaded(model, replace(loading, threads=1)) as engine:
        if loading.device == "cpu":
            _of_stages(engine.model, as_json)
        else:
            _of_sides(engine.model, as_json)


def _of_stages(model: "Model", as_json: bool) -> None:
    """For a model on the CPU: stages, and the outputs' places in the arena."""
    from engine.shell.terminal import print_table, stdout

    ready = model.plan
    stage = {
        call.step: i for i, calls in reversed(list(enumerate(ready.stages, 1))) for call in calls
    }
    rows: list[dict[str, Any]] = [
        {
            "stage": stage[i],
            "node": step.node.label,
            "op": step.node.op,
            "kernel": step.kernel.name,
            "reads": [value.name for value in step.reads()],
            "output": " ".join(map(str, step.output.dims)),
            "arena": ready.offsets.get(step.output.name),
        }
        for i, step in enumerate(ready.steps)
    ]
    if as_json:
        print(json.dumps({"nodes": rows, "arena_bytes": ready.arena_bytes}))
        return
    print_table(
        ("stage", "node", "kernel", "output", "arena offset", "reads"),
        (
            (r["stage"], r["node"], r["kernel"], r["output"], r["arena"], ", ".join(r["reads"]))
            for r in rows
        ),
    )
    stdout().print(
        f"{len(rows)} nodes in {len(ready.stages)} stages, arena of {ready.arena_bytes:,} bytes"
        f" for {ready.limits['tokens']} tokens, cache of {model.cells.capacity} cells"
    )


def _of_sides(model: "Model", as_json: bool) -> None:
    """For a model on a GPU: which nodes it runs."""
    from engine.shell.terminal import print_table, stdout

    rows = [
        {"node": s.node.label, "op": s.node.op, "kernel": s.kernel.name, "target": s.kernel.target}
        for s in model.steps
    ]
    if as_json:
        print(json.dumps({"nodes": rows}))
        return
    there = sum(row["target"] == "cuda" for row in rows)
    print_table(("target", "node", "kernel"), ((r["target"], r["node"], r["kernel"]) for r in rows))
    stdout().print(f"{len(rows)} nodes, {there} of them on the GPU")
