"""Neurons that stay in memory for good, by how often a text has made them fire.

A pinned neuron saves a read whenever a step needs it, and takes a slot that the window of the
neurons used last would have. All that the window can find is what steps need, so on average a slot
of it saves at most (neurons a step needs) / (slots) reads, and its last slot, which holds what was
unused for longest, saves less than that. A neuron is pinned if it is needed more often, the most
active first; each that is pinned leaves the window less to find, and one slot less to find it in.

Nothing is assumed of how one token's neurons are like the next one's, which counts do not tell: the
more alike they are, the more a window finds of itself, and this bound is for one that finds all.
Where neurons are all as active, or more are needed than there are slots, none is pinned. Counts are
compared with counts, so of how many tokens they are does not matter.
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
    """How often each neuron of the blocks that skip neurons fired, by block int64 [neurons].

    Raises `StatisticsError` where that cannot be read or is of another model, `ModelError` where no
    block skips neurons.
    """
    if not config.sparsity:
        raise ModelError(f"{shown_path(file.path)}: no block skips neurons, so none can be pinned")
    found = statistics.read(path)
    ups = (file.tensors[f"blk.{i}.ffn_up.weight"] for i in range(config.blocks))
    found.check(file, tuple(up.dims[0] for up in ups))
    return {i: found.counts[i] for i in config.sparsity.ranks}


def hottest(counts: Sequence[Ints], capacity: int) -> list[list[int]]:
    """The neurons of each block that get a slot of `capacity` for good, ascending; of equally
    active ones those that come first. The rest of the slots hold all other neurons of any one
    block."""
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
    """How many of these, int64 [neurons], descending, are needed more often than a slot of the
    window can be worth that they leave."""
    most = min(len(counts), capacity)
    rest = counts.sum() - (np.cumsum(counts) - counts)[:most]
    pays = counts[:most] > rest / np.arange(capacity, capacity - most, -1)
    return most if pays.all() else int(np.argmin(pays))
