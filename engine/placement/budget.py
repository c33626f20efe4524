"""What a GPU's memory holds of a sparse model: the parts in PowerInfer's order, while they fit.

    1  attention     every tensor, block after block
    2  predictors    fc1 and fc2
    3  FFN norms
    4  output        its norm and matrix (of tied embeddings, a copy)
    5  the cache     K, then V; only if all of the above fitted
    6  neurons       rows of the FFN's matrices, in what is left; only if 1 to 4 fitted

The token embedding and all else stays where it is. Loading ends at the first tensor that does not
fit, though a smaller one might.
"""

import math
import re
import subprocess
from dataclasses import dataclass

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from engine.errors import EngineError
from engine.file_errors import shown_path
from engine.gguf.file import GGUFFile, TensorInfo
from engine.offload.bundle import UNDO_FIRST, is_bundled
from kernels.cuda.runtime.device import Device

GIB = 2**30
FREE = -1.0  # a budget of all free memory
RESERVE = 2**28  # bytes of free memory that are left unused
LEVELS = (
    re.compile(r"blk\.(\d+)\.attn_|rope_freqs\."),
    re.compile(r"blk\.(\d+)\.fc[12]\."),
    re.compile(r"blk\.(\d+)\.(ffn_norm\.|ffn_down_t\.bias)"),
    re.compile(r"output(_norm)?\."),
)
ROWS = ("ffn_gate.weight", "ffn_up.weight", "ffn_down_t.weight", "ffn_gate.bias", "ffn_up.bias")
KV_FORMATS = ("F32", "F16", "Q8_0", "Q4_0")
QUERY = ("nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits")


class PlacementError(EngineError):
    """A model or a budget for which nothing can be placed, in one plain line."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Bytes of what may go to the GPU.

    dense    by tensor, in the order in which they are loaded
    cache    by K and V
    ffn      neurons of each block
    neuron   bytes of a neuron of each block: its row of gate, where there is one, up and down
    """

    dense: dict[str, int]
    cache: dict[str, int]
    ffn: tuple[int, ...]
    neuron: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Room:
    """What fits: tensors, K and V by name, bytes left for neurons; and what did not fit."""

    dense: tuple[str, ...]
    cache: tuple[str, ...]
    neurons: int
    notes: tuple[str, ...]


def budget_bytes(gib: float, device: Device | None = None) -> int:
    """A budget in bytes; -1 stands for the free memory of the GPU, or of the `device`, less 256
    MiB. Raises `PlacementError`."""
    if gib == FREE:
        free = device.memory()[0] if device else free_memory()
        if free is None:
            raise PlacementError("there is no GPU whose free memory could be the budget: name one")
        return max(0, free - RESERVE)
    if not math.isfinite(gib) or gib < 0:
        raise PlacementError(f"a budget is -1, for what is free, or GiB from 0 on, not {gib:g}")
    return int(gib * GIB)


def free_memory() -> int | None:
    """Free bytes of the first GPU; None without one."""
    try:
        said = subprocess.run(QUERY, capture_output=True, text=True, timeout=20, check=True).stdout
        return int(said.split()[0]) * 2**20
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def parts(file: GGUFFile, context: int = 0, kv_format: str = "F16") -> Parts:
    """The parts of a sparse model, with a cache of `context` tokens; 0: the model's own. Raises
    `PlacementError`."""
    where = shown_path(file.path)
    if is_bundled(file):
        raise PlacementError(f"{where}: {UNDO_FIRST}")
    ups = [_tensor(file, f"blk.{i}.ffn_up.weight") for i in range(_blocks(file))]
    neuron = []
    for i, up in enumerate(ups):
        down = _tensor(file, f"blk.{i}.ffn_down_t.weight")
        if len(up.dims) != 2 or not up.dims[0] or down.dims != up.dims:
            raise PlacementError(f"{where}: {down.name} and {up.name} have other shapes")
        rows = [file.tensors[n] for n in (f"blk.{i}.{row}" for row in ROWS) if n in file.tensors]
        for row in rows:
            if row.n_bytes % up.dims[0]:
                raise PlacementError(f"{where}: {row.name} has no row for each neuron")
        neuron.append(sum(row.n_bytes // up.dims[0] for row in rows))
    ffn = tuple(up.dims[0] for up in ups)
    return Parts(_dense(file), _cache(file, len(ups), context, kv_format), ffn, tuple(neuron))


def room(parts: Parts, budget: int) -> Room:
    """What fits into `budget` bytes."""
    left = budget
    dense: list[str] = []
    cache: list[str] = []
    for name, n_bytes in parts.dense.items():
        if n_bytes > left:
            whole = sum(parts.dense.values())
            note = (
                f"no neuron is on the GPU: what comes first takes {whole:,} bytes,"
                f" {whole - budget:,} more than the budget; {name} and all after it do not fit"
            )
            return Room(tuple(dense), (), 0, (note,))
        dense.append(name)
        left -= n_bytes
    for name, n_bytes in parts.cache.items():
        if n_bytes > left:
            note = f"the cache's {name} takes {n_bytes:,} bytes, {left:,} are left: not on the GPU"
            return Room(tuple(dense), tuple(cache), left, (note,))
        cache.append(name)
        left -= n_bytes
    return Room(tuple(dense), tuple(cache), left, ())


def _blocks(file: GGUFFile) -> int:
    found = [re.match(r"blk\.(\d+)\.", name) for name in file.tensors]
    count = max((int(match[1]) + 1 for match in found if match), default=0)
    if not 0 < count <= len(file.tensors):
        raise PlacementError(f"{shown_path(file.path)}: this model has no blocks, or some only")
    return count


def _tensor(file: GGUFFile, name: str) -> TensorInfo:
    if name not in file.tensors:
        raise PlacementError(
            f"{shown_path(file.path)}: there is no tensor {name}: only sparse models, with a"
            " transposed down, have neurons to place"
        )
    return file.tensors[name]


def _dense(file: GGUFFile) -> dict[str, int]:
    ordered = []
    for tensor in file.tensors.values():
        for level, pattern in enumerate(LEVELS):
            if match := pattern.match(tensor.name):
                block = int(match[1]) if level < 3 and match[1] else -1
                ordered.append((level, block, tensor))
    if "output.weight" not in file.tensors:
        ordered.append((len(LEVELS), 0, _tensor(file, "token_embd.weight")))
    ordered.sort(key=lambda entry: entry[:2])
    return {tensor.name: tensor.n_bytes for _, _, tensor in ordered}


def _cache(file: GGUFFile, blocks: int, context: int, kv_format: str) -> dict[str, int]:
    where = shown_path(file.path)
    if kv_format not in KV_FORMATS:
        raise PlacementError(f"a cache is of {', '.join(KV_FORMATS)}, not {kv_format!r}")
    if context == 0:
        key = f"{file.metadata.get('general.architecture')}.context_length"
        context = file.metadata.get(key, 0)
        if type(context) is not int or context < 1:
            raise PlacementError(f"{where}: {key} is no number of tokens: name a context")
    if context < 0:
        raise PlacementError(f"a context is a number of tokens, not {context}")
    block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[kv_format]]
    cache = dict.fromkeys("KV", 0)
    for i in range(blocks):
        for side, name in (("K", f"blk.{i}.attn_k.weight"), ("V", f"blk.{i}.attn_v.weight")):
            both = file.tensors.get(f"blk.{i}.attn_qkv.weight")
            width = (both.dims[0] - both.dims[-1]) // 2 if both else _tensor(file, name).dims[0]
            if width % block:
                raise PlacementError(f"{where}: {kv_format} holds multiples of {block}, {side} of"
                                     f" block {i} has {width}")  # fmt: skip
            cache[side] += context * (width // block * block_bytes)
    return cache
