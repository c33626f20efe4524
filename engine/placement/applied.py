"""Applies a placement to a model that is being loaded."""

from dataclasses import replace

from engine.config import ModelConfig, ModelError
from engine.gguf.file import GGUFFile
from engine.models import feed_forward
from engine.options import Options
from engine.placement import statistics
from engine.placement.budget import budget_bytes
from engine.placement.place import find
from kernels.cuda.runtime.device import Device


def placed(
    config: ModelConfig, file: GGUFFile, options: Options, context: int, device: Device | None
) -> tuple[ModelConfig, list[str]]:
    """The config with neurons on both sides of the budget, by the index beside the model, and
    notes. With a device each is computed where it is placed, and the file has tensors of either
    side's rows."""
    if not config.sparsity:
        raise ModelError(f"{file.path}: no predictors, so no neurons to split by a budget")
    found = find(
        file,
        statistics.read(options.activation) if options.activation else None,
        budget_bytes(options.vram_budget, device),
        context=context,
        kv_format=options.kv_format,
        reset=options.reset_gpu_index,
        disable=options.disable_gpu_index,
    )
    notes = list(found.placement.notes)
    if device is None:
        notes.append("the device is the CPU: it computes the GPU's part too")
    elif len(found.placement.cache) < len("KV"):
        raise ModelError(
            f"{file.path}: a vram_budget of {options.vram_budget:g} GiB is too small for attention"
            f" and its cache: {'; '.join(notes)}"
        )
    places = {i: found.placement.gpu_idx[i] for i in config.sparsity.ranks}
    sparsity = replace(config.sparsity, places=places, apart=device is not None)
    config = replace(config, sparsity=sparsity)
    for name, (tensor, numbers) in feed_forward.picked(config).items():
        file.tensors[name] = file.tensors[tensor].only(name, numbers)
    return config, notes
