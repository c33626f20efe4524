"""PyTorch's own checkpoints."""

from collections.abc import Mapping
from pathlib import Path

from engine.convert.json_files import CheckpointError, read_json
from engine.torch_file import TorchFileError, TorchTensor, load

INDEX = "pytorch_model.bin.index.json"
WHOLE = "pytorch_model.bin"


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
    """The tensors of one file."""
    try:
        state = load(path)
    except TorchFileError as error:
        raise CheckpointError(str(error)) from None
    if not isinstance(state, dict):
        raise CheckpointError(f"{path}: this is not a table of tensors")
    for name, tensor in state.items():
        if not isinstance(name, str) or not isinstance(tensor, TorchTensor) or not tensor.dims:
            raise CheckpointError(f"{path}: {name!r} in it is no tensor")
    return state
