"""assay place: choose a sparse model's neurons for the GPU."""

import json
from typing import TYPE_CHECKING, Annotated, Any

from engine.shell.command_line import options as o
from engine.shell.command_line.groups import Only, option

if TYPE_CHECKING:
    from engine.placement import Activations, Found

OF_NEURONS = Only(
    "context", "kv_format", "vram_budget", "activation", "reset_gpu_index", "disable_gpu_index"
)
FREE = o.Loading(vram_budget=-1.0)
FOLDER = "activation"  # beside the model, where PowerInfer looks


def place(
    model: o.ModelName,
    *,
    loading: Annotated[o.Loading, OF_NEURONS] = FREE,
    cpu_speed: float = option(50.0, "Bandwidth at which the CPU reads weights.", metavar="GB/S"),
    gpu_speed: float = option(1000.0, "Bandwidth at which the GPU reads weights.", metavar="GB/S"),
    sync_cost: float = option(
        30.0, "Time per token that a layer on both sides costs.", metavar="US"
    ),
    as_json: o.Json = False,
) -> None:
    """Place a sparse model's neurons: the most active ones on the GPU, within a budget.

    Attention, predictors, norms, output and cache come first; neurons get the rest. The statistics
    are those of --activation, or of the folder activation beside MODEL; the placement is stored in
    MODEL.generated.gpuidx, which PowerInfer reads too, and reused until the model, the statistics,
    the budget, the cache or the speeds change.
    """
    from engine.atomic_write import OutputError
    from engine.embedded import resolve
    from engine.gguf.file import GGUFFile
    from engine.placement import Speeds, budget_bytes, find, statistics
    from engine.shell.terminal import note, progress_bar

    path = resolve(model)
    speeds = Speeds(1e9 * cpu_speed, 1e9 * gpu_speed, sync_cost / 1e6)
    activation, disable = loading.activation, loading.disable_gpu_index
    if activation is None and (path.parent / FOLDER).is_dir() and not disable:
        activation = path.parent / FOLDER
    with GGUFFile(path) as file, progress_bar() as bar:
        bar.add_task("placing neurons", total=None)
        activations = None if activation is None else statistics.read(activation)
        found = find(
            file,
            activations,
            budget_bytes(loading.vram_budget),
            context=loading.context,
            kv_format=loading.kv_format,
            speeds=speeds,
            reset=loading.reset_gpu_index,
            disable=disable,
        )
    for line in found.placement.notes:
        note(line)
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
    from engine.shell.terminal import figures, print_table, stdout

    said = _described(found, activations)
    names = ["block", "neurons", "on the GPU", "share", "bytes"]
    if activations is not None:
        names.append("of activations")
    rows = []
    for row in said["blocks"]:
        share = f"{row['on_gpu'] / row['neurons']:.1%}"
        cells = [row["block"], row["neurons"], row["on_gpu"], share, row["bytes"]]
        rows.append(cells + [f"{row[name]:.1%}" for name in ("activations",) if name in row])
    print_table(figures(*names), rows)
    neurons, on_gpu = (sum(row[key] for row in said["blocks"]) for key in ("neurons", "on_gpu"))
    before = [f"{len(said['dense'])} tensors", *said["cache"]]
    stdout().print(
        f"{on_gpu:,} of {neurons:,} neurons on the GPU: {said['needed_bytes']:,} of"
        f" {said['capacity_bytes']:,} bytes that {', '.join(before)} leave of"
        f" {said['budget_bytes']:,}",
        highlight=False,
    )
    print(f"{found.path}: {found.state}")
