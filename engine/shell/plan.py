"""assay plan: a model's nodes, the kernels chosen for them, and where their outputs lie."""

import json
from typing import Any

from engine.shell import options as o


def plan(
    model: o.ModelName,
    context: o.Context = 0,
    batch: o.Batch = 512,
    kv: o.KvFormat = "F16",
    variant: o.Variant = None,
    strict: o.Strict = False,
    as_json: o.Json = False,
) -> None:
    """Print the nodes of a step in the order in which they run."""
    from rich.table import Table

    from engine.shell.show import loaded, stdout

    with loaded(
        model, threads=1, context=context, batch=batch, kv_format=kv, variant=variant, strict=strict
    ) as engine:
        ready = engine.model.plan
        rows: list[dict[str, Any]] = [
            {
                "node": step.node.label,
                "op": step.node.op,
                "kernel": step.kernel.name,
                "reads": [value.name for value in step.reads()],
                "output": " ".join(map(str, step.output.dims)),
                "arena": ready.offsets.get(step.output.name),
            }
            for step in ready.steps
        ]
        if as_json:
            print(json.dumps({"nodes": rows, "arena_bytes": ready.arena_bytes}))
            return
        table = Table("node", "kernel", "output", "arena offset", "reads")
        for row in rows:
            where = "" if row["arena"] is None else str(row["arena"])
            table.add_row(row["node"], row["kernel"], row["output"], where, ", ".join(row["reads"]))
        console = stdout()
        console.print(table)
        console.print(
            f"{len(rows)} nodes, arena of {ready.arena_bytes:,} bytes for"
            f" {ready.limits['tokens']} tokens, cache of {engine.model.cells.capacity} cells"
        )
