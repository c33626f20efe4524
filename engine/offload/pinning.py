"""Neurons that are pinned in memory, by how often they fire in a sample text.

A pinned neuron saves a read whenever a step needs it, and takes a slot from the window of recently
used neurons. The window can at most find everything that steps need, so a slot of it saves on
average at most (neurons a step needs) / (slots) reads, and its last slot, which holds the least
recently used neuron, saves less than that. A neuron is pinned if it is needed more often than this,
the most active first; each pinned neuron leaves less for the window to find, and one slot less.
Counts say nothing about how similar consecutive tokens are; this bound holds for a window that
finds everything. Where all neurons are equally active, or more are needed than there are slots,
none is pinned. Only ratios of counts matter, so their number of tokens does not.
"""

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engine.config import ModelConfig, ModelError
from engine.file_errors import shown_path
from engine.gguf.file import GGUFFile
from engine.placement import statistics
from kernels.cpu.runtime.neuron_window import slots_needed

Ints = np.ndarray[Any, np.dtype[np.int64]]


def activations(path: Path, file: GGUFFile, config: ModelConfig) -> dict[int, Ints]:
    """How often each neuron of the sparse blocks fired, by block int64 [neurons]. Raises
    `StatisticsError` where the file cannot be read or belongs to another model, `ModelError` where
    no block skips neurons."""
    if not config.sparsity:
        raise ModelError(f"{shown_path(file.path)}: no block skips neurons, so none can be pinned")
    found = statistics.read(path)
    ups = (file.tensors[f"blk.{i}.ffn_up.weight"] for i in range(config.blocks))
    found.check(file, tuple(up.dims[0] for up in ups))
    return {i: found.counts[i] for i in config.sparsity.ranks}


def hottest(counts: Sequence[Ints], capacity: int) -> list[list[int]]:
    """The neurons of each block that are pinned in a pool of `capacity` slots, ascending; ties go
    to the lower index. The remaining slots must hold all other neurons of any one block."""
    sizes = [len(block) for block in counts]
    every = np.concatenate(counts)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    order = np.argsort(-every, kind="stable")
    worth = worthwhile(every[order], capacity)
    owners = owner[order[:worth]]

    def needed(many: int) -> int:
        pinned = np.bincount(owners[:many], minlength=len(sizes))
        return slots_needed(sizes, np.zeros_like(pinned), pinned)

    many = bisect_right(range(worth + 1), capacity, key=needed) - 1
    chosen = np.sort(order[:many])
    firsts = np.cumsum(sizes) - sizes
    return [(chosen[owner[chosen] == block] - first).tolist() for block, first in enumerate(firsts)]


def worthwhile(counts: Ints, capacity: int) -> int:
    """How many of these counts, int64 [neurons], descending, exceed the best possible worth of a
    slot in the remaining window."""
    most = min(len(counts), capacity)
    rest = counts.sum() - (np.cumsum(counts) - counts)[:most]
    pays = counts[:most] > rest / np.arange(capacity, capacity - most, -1)
    return most if pays.all() else int(np.argmin(pays))
