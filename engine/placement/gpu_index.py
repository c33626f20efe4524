"""The file beside a model that says which neurons go to the GPU, in PowerInfer's format.

A GGUF file of version 3 with the magic of sparse models, architecture "generic.gpu_index":

    generic.gpu_index.block_count   u32
    split.vram_capacity             u64, bytes that the placed neurons need
    blk.{i}.gpu_idx                 I32 [ffn], 1 for a neuron on the GPU, otherwise 0
    blk.{i}.gpu_bucket              I32 [neurons on the GPU], their numbers, ascending

for each block in order, idx before bucket. Keys of ours, which others pass over, say what the
placement was made of: `assay.placement.{model,statistics,budget,cache,solver}`, each a text.

Source: PowerInfer, powerinfer-py/powerinfer/export_split.py and its loader in llama.cpp.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import EngineError
from engine.file_errors import shown_path
from engine.gguf.file import GGUFFile
from engine.gguf.writer import NewTensor, text, u32, u64, write_gguf

SUFFIX = ".generated.gpuidx"
ARCHITECTURE = "generic.gpu_index"
BLOCKS = f"{ARCHITECTURE}.block_count"
CAPACITY = "split.vram_capacity"
OURS = "assay.placement."

Ints = np.ndarray[Any, np.dtype[np.int32]]


class GpuIndexError(EngineError):
    """A file that is no index of neurons, in one plain line."""


@dataclass(frozen=True, slots=True)
class GpuIndex:
    """int32 [ffn] of 0 and 1 for each block, the bytes it was made for, and, in our own files, its
    provenance."""

    gpu_idx: tuple[Ints, ...]
    capacity: int
    made_of: Mapping[str, str]


def path_of(model: Path) -> Path:
    """The path of a model's index."""
    return model.with_name(model.name + SUFFIX)


def write(path: Path, index: GpuIndex) -> None:
    """Write the index. Raises `OutputError`."""
    keys = {
        "general.architecture": text(ARCHITECTURE),
        BLOCKS: u32(len(index.gpu_idx)),
        CAPACITY: u64(index.capacity),
        **{OURS + name: text(value) for name, value in index.made_of.items()},
    }
    tensors, data = [], []
    for i, gpu_idx in enumerate(index.gpu_idx):
        bucket = np.flatnonzero(gpu_idx)
        names = _names(i)
        tensors += [NewTensor(names[0], "I32", gpu_idx.shape)]
        tensors += [NewTensor(names[1], "I32", bucket.shape)]
        data += [gpu_idx.astype("<i4"), bucket.astype("<i4")]
    write_gguf(path, keys, tensors, (d.view(np.uint8) for d in data if len(d)), magic="PWRI")


def read(path: Path) -> GpuIndex:
    """Read an index of ours or PowerInfer's. Raises `GpuIndexError` and `GGUFError`."""
    with GGUFFile(path) as file:
        where = f"{shown_path(path)}: "
        if file.metadata.get("general.architecture") != ARCHITECTURE:
            raise GpuIndexError(f"{where}this is no index of neurons")
        capacity = file.metadata.get(CAPACITY)
        if type(capacity) is not int or capacity < 0:
            raise GpuIndexError(f"{where}{CAPACITY} is no number of bytes")
        blocks = len(file.tensors) // 2
        if file.metadata.get(BLOCKS, blocks) != blocks:
            raise GpuIndexError(f"{where}{BLOCKS} is not {blocks}, of which there are tensors")
        if list(file.tensors) != [name for i in range(blocks) for name in _names(i)]:
            raise GpuIndexError(f"{where}the tensors are not gpu_idx and gpu_bucket of each block")
        gpu_idx = tuple(_block(file, i, where) for i in range(blocks))
        made_of = {
            key.removeprefix(OURS): str(value)
            for key, value in file.metadata.items()
            if key.startswith(OURS)
        }
    return GpuIndex(gpu_idx, capacity, made_of)


def _names(block: int) -> tuple[str, str]:
    return f"blk.{block}.gpu_idx", f"blk.{block}.gpu_bucket"


def _block(file: GGUFFile, block: int, where: str) -> Ints:
    arrays = []
    for name in _names(block):
        tensor = file.tensors[name]
        if tensor.type_name != "I32" or len(tensor.dims) != 1:
            raise GpuIndexError(f"{where}{name} is not I32 of one dimension")
        arrays.append(file.tensor(name).view("<i4").astype(np.int32))
    gpu_idx, bucket = arrays
    if not np.isin(gpu_idx, (0, 1)).all():
        raise GpuIndexError(f"{where}blk.{block}.gpu_idx has what is neither 0 nor 1")
    if not np.array_equal(bucket, np.flatnonzero(gpu_idx)):
        raise GpuIndexError(f"{where}blk.{block}.gpu_bucket does not list the ones of gpu_idx")
    return gpu_idx
