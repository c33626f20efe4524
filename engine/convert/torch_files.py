"""PyTorch's own checkpoints: read where torch is installed, without running what they hold."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.convert.checkpoint import CheckpointError, read_json
from reference.formats.format import Floats

INDEX = "pytorch_model.bin.index.json"
WHOLE = "pytorch_model.bin"
ADVICE = "install torch, or save the model as safetensors (transformers' save_pretrained does)"


@dataclass(frozen=True, slots=True)
class TorchTensor:
    """A mapped tensor."""

    file: Path
    tensor: Any

    @property
    def dims(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> str:
        """By safetensors' names, where it is a float."""
        name = str(self.tensor.dtype).removeprefix("torch.")
        return {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}.get(name, name)

    def rows(self, first: int, last: int) -> Floats:
        return np.asarray(self.tensor[first:last].float().numpy(), np.float32)


def files(folder: Path) -> list[Path]:
    """The pickles of a folder that has no safetensors; raises where there are none either."""
    if (folder / INDEX).exists():
        names = read_json(folder / INDEX).get("weight_map")
        found = sorted(set(names.values())) if isinstance(names, dict) else []
    else:
        found = [WHOLE] if (folder / WHOLE).exists() else []
    if not found:
        raise CheckpointError(f"{folder}: there are no weights: want model*.safetensors")
    for name in found:
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder / name}: this shard is missing")
    return [folder / name for name in found]


def tensors(path: Path) -> Mapping[str, TorchTensor]:
    """The tensors of one file, mapped."""
    try:
        import torch
    except ImportError:
        raise CheckpointError(f"{path}: PyTorch's pickles need torch: {ADVICE}") from None
    try:
        state = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except Exception as error:  # the library has no error type of its own
        line = str(error).partition("\n")[0]
        raise CheckpointError(f"{path}: cannot be read as weights alone: {line}") from None
    if not isinstance(state, dict) or not all(torch.is_tensor(t) for t in state.values()):
        raise CheckpointError(f"{path}: this is not a table of tensors")
    return {name: TorchTensor(path, tensor.detach()) for name, tensor in state.items()}
