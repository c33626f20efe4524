"""assay plan: a model's nodes, the kernels chosen for them, and where their outputs lie."""

import json
from typing import TYPE_CHECKING, Any

from engine.shell import options as o

if TYPE_CHECKING:
    from engine.model import Model


def plan(
    model: o.ModelName,
    context: o.Context = 0,
    batch: o.Batch = 512,
    kv: o.KvFormat = "F16",
    numerics: o.Numerics = "exact",
    device: o.Device = "cpu",
    gpu_layers: o.GpuLayers = -1,
    variant: o.Variant = None,
    strict: o.Strict = False,
    sparse: o.Sparse = "auto",
    sparse_threshold: o.SparseThreshold = None,
    union: o.Union = False,
    as_json: o.Json = False,
) -> None:
    """Print the nodes of a step in the order in which they run."""
    from engine.shell.show import loaded

    with loaded(
        model,
        threads=1,
        context=context,
        batch=batch,
        kv_format=kv,
        numerics=numerics,
        device=device,
        gpu_layers=gpu_layers,
        variant=variant,
        strict=strict,
        sparse=sparse,
        threshold=sparse_threshold,
        union=union,
    ) as engine:
        if device == "cpu":
            _of_stages(engine.model, as_json)
        else:
            _of_sides(engine.model, as_json)


def _of_stages(model: "Model", as_json: bool) -> None:
    """Of a model that the CPU runs alone: stages, and where outputs lie in the arena."""
    from rich.table import Table

    from engine.shell.show import stdout

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
    table = Table("stage", "node", "kernel", "output", "arena offset", "reads")
    for row in rows:
        where = "" if row["arena"] is None else str(row["arena"])
        reads = ", ".join(row["reads"])
        table.add_row(str(row["stage"]), row["node"], row["kernel"], row["output"], where, reads)
    console = stdout()
    console.print(table)
    console.print(
        f"{len(rows)} nodes in {len(ready.stages)} stages, arena of {ready.arena_bytes:,} bytes"
        f" for {ready.limits['tokens']} tokens, cache of {model.cells.capacity} cells"
    )


def _of_sides(model: "Model", as_json: bool) -> None:
    """Of a model on a GPU: which nodes it runs."""
    from rich.table import Table

    from engine.shell.show import stdout

    rows = [
        {"node": s.node.label, "op": s.node.op, "kernel": s.kernel.name, "target": s.kernel.target}
        for s in model.steps
    ]
    if as_json:
        print(json.dumps({"nodes": rows}))
        return
    table = Table("target", "node", "kernel")
    for row in rows:
        table.add_row(row["target"], row["node"], row["kernel"])
    there = sum(row["target"] == "cuda" for row in rows)
    stdout().print(table)
    stdout().print(f"{len(rows)} nodes, {there} of them on the GPU")
