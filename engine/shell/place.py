"""assay place: which neurons of a sparse model go to the GPU."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engine.shell import options as o

if TYPE_CHECKING:
    from engine.placement import Activations, Found

FOLDER = "activation"  # beside the model, where PowerInfer looks


def place(
    model: o.ModelName,
    budget: o.VramBudget = -1.0,
    activation: o.Activation = None,
    context: o.Context = 0,
    kv: o.KvFormat = "F16",
    cpu_speed: Annotated[
        float, typer.Option(metavar="GB/S", help="At which the CPU reads weights.")
    ] = 50.0,
    gpu_speed: Annotated[
        float, typer.Option(metavar="GB/S", help="At which the GPU does.")
    ] = 1000.0,
    sync_cost: Annotated[
        float, typer.Option(metavar="US", help="Time a token that a layer on both sides costs.")
    ] = 30.0,
    reset: o.ResetGpuIndex = False,
    disable: o.DisableGpuIndex = False,
    as_json: o.Json = False,
) -> None:
    """Place a sparse model's neurons: the most active ones on the GPU, within a budget.

    Attention, predictors, norms, output and cache come first; neurons get what they leave. The
    statistics are those of --activation, or of the folder activation beside MODEL; the answer is
    kept in MODEL.generated.gpuidx, which PowerInfer reads too, and used again until the
    model, the statistics, the budget, the cache or the speeds change.
    """
    from engine.aside import OutputError
    from engine.embedded import resolve
    from engine.gguf_file import GGUFFile
    from engine.placement import Speeds, budget_bytes, find, statistics
    from engine.shell.show import progress_bar, stderr

    path = resolve(model)
    speeds = Speeds(1e9 * cpu_speed, 1e9 * gpu_speed, sync_cost / 1e6)
    if activation is None and (path.parent / FOLDER).is_dir() and not disable:
        activation = path.parent / FOLDER
    with GGUFFile(path) as file, progress_bar() as bar:
        bar.add_task("placing neurons", total=None)
        activations = None if activation is None else statistics.read(activation)
        found = find(
            file, activations, budget_bytes(budget), context=context, kv_format=kv, speeds=speeds,
            reset=reset, disable=disable,
        )  # fmt: skip
    for note in found.placement.notes:
        stderr.print(f"note: {note}", style="yellow", highlight=False, markup=False, soft_wrap=True)
    if as_json:
        print(json.dumps(_described(found, activations)))
    else:
        _show(found, activations)
    if found.state == "not kept":
        raise OutputError(f"{found.path}: the placement could not be kept")


def _described(found: "Found", activations: "Activations | None") -> dict[str, Any]:
    placement = found.placement
    blocks: list[dict[str, Any]] = [
        {"block": i, "neurons": len(idx), "on_gpu": int(idx.sum()), "bytes": int(idx.sum()) * size}
        for i, (idx, size) in enumerate(zip(placement.gpu_idx, placement.neuron, strict=True))
    ]
    if activations is not None:
        for row, share in zip(blocks, placement.covered(activations), strict=True):
            row["activations"] = share
    return {
        "file": None if found.state in ("not kept", "ignored") else str(found.path),
        "state": found.state,
        "budget_bytes": placement.budget,
        "dense": placement.dense,
        "cache": placement.cache,
        "capacity_bytes": placement.capacity,
        "needed_bytes": placement.needed,
        "blocks": blocks,
        "notes": placement.notes,
    }


def _show(found: "Found", activations: "Activations | None") -> None:
    from rich.table import Column, Table

    from engine.shell.show import stdout

    said = _described(found, activations)
    names = ["block", "neurons", "on the GPU", "share", "bytes"]
    if activations is not None:
        names.append("of activations")
    table = Table(*(Column(name, justify="right") for name in names))
    for row in said["blocks"]:
        cells = [f"{row[key]:,}" for key in ("block", "neurons", "on_gpu")]
        cells += [f"{row['on_gpu'] / row['neurons']:.1%}", f"{row['bytes']:,}"]
        if activations is not None:
            cells.append(f"{row['activations']:.1%}")
        table.add_row(*cells)
    console = stdout()
    console.print(table)
    neurons, on_gpu = (sum(row[key] for row in said["blocks"]) for key in ("neurons", "on_gpu"))
    before = [f"{len(said['dense'])} tensors", *said["cache"]]
    console.print(
        f"{on_gpu:,} of {neurons:,} neurons on the GPU: {said['needed_bytes']:,} of"
        f" {said['capacity_bytes']:,} bytes that {', '.join(before)} leave of"
        f" {said['budget_bytes']:,}",
        highlight=False,
    )
    print(f"{found.path}: {found.state}")
