"""How many neurons of each layer go to the GPU: the most active ones, in groups, for so many bytes.

Neurons of a layer are sorted by how often they were active and cut into groups; a layer's first k
groups go to the GPU. What that saves is added up over layers, less a cost for each layer that is
split between both sides. Where nothing is to be paid and all groups are of one size, the groups
that save most are the answer; otherwise it is a knapsack with one choice a layer, for `milp`:

    maximise    sum worth[layer, k] z[layer, k]      z is 0 or 1
    where       sum over k of z[layer, k] = 1        for each layer
                sum bytes[layer, k] z[layer, k] <= capacity

Source: PowerInfer (arXiv 2312.12456), section 6, and its solver's groups of 256.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

GROUP = 256
NODES = 200  # of the search's nodes, so that it ends, and with the same answer anywhere

Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer's groups, most active neurons first.

    saves    float64 [groups], what each saves, in any unit sizes    int64 [groups], bytes of each
    """

    saves: Floats
    sizes: Ints

    def worth(self, cost: float) -> Floats:
        """float64 [groups + 1] of its first 0, 1, ... groups, less the cost of a split."""
        worth = np.concatenate([[0.0], np.cumsum(self.saves)])
        worth[1:-1] -= cost
        return worth

    def taken(self) -> Ints:
        """int64 [groups + 1], their bytes."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.sizes)])


@dataclass(frozen=True, slots=True)
class Solution:
    """Groups of each layer on the GPU, their worth, and an upper bound on how much more the optimum
    could be worth: 0 unless the search was cut off."""

    groups: tuple[int, ...]
    worth: float
    gap: float = 0.0


def grouped(counts: Ints, neuron_bytes: int, unit: float) -> Layer:
    """The layer of neurons with these counts [ffn], where an activation saves `unit` per byte."""
    ordered = -np.sort(-counts)
    edges = [*range(0, len(ordered), GROUP), len(ordered)]
    sums = [int(ordered[a:b].sum()) for a, b in pairwise(edges)]
    sizes = [(b - a) * neuron_bytes for a, b in pairwise(edges)]
    return Layer(np.array(sums) * (unit * neuron_bytes), np.array(sizes, np.int64))


def solve(layers: Sequence[Layer], capacity: int, cost: float = 0.0) -> Solution:
    """The most valuable choice in `capacity` bytes; among equals always the same one. `cost` is in
    the unit of what groups save."""
    sizes = np.unique(np.concatenate([layer.sizes for layer in layers]))
    everything = tuple(len(layer.sizes) for layer in layers)
    if sum(int(layer.sizes.sum()) for layer in layers) <= capacity:
        return _solution(layers, everything, cost)
    if capacity < sizes[0]:
        return _solution(layers, (0,) * len(layers), cost)
    if cost == 0 and len(sizes) == 1:
        return _solution(layers, densest(layers, capacity), cost)
    return searched(layers, capacity, cost)


def densest(layers: Sequence[Layer], capacity: int) -> tuple[int, ...]:
    """Greedy choice: groups by savings per byte, while they fit."""
    saves = np.concatenate([layer.saves / layer.sizes for layer in layers])
    owners = np.repeat(np.arange(len(layers)), [len(layer.sizes) for layer in layers])
    numbers = np.concatenate([np.arange(len(layer.sizes)) for layer in layers])
    groups, left = [0] * len(layers), capacity
    for i in np.lexsort((owners, numbers, -saves)):
        owner = int(owners[i])
        size = int(layers[owner].sizes[numbers[i]])
        if groups[owner] == numbers[i] and size <= left:
            groups[owner] += 1
            left -= size
    return tuple(groups)


def searched(layers: Sequence[Layer], capacity: int, cost: float) -> Solution:
    """The integer programme's answer, or `densest`'s if that is worth as much."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    worths = [layer.worth(cost) for layer in layers]
    worth = np.concatenate(worths)
    taken = np.concatenate([layer.taken() for layer in layers])
    unit = math.gcd(*taken.tolist())
    scale = (
        float(np.abs(worth).max()) or 1.0
    )  # scaled to about 1, where the solver's tolerances make sense
    owners = np.repeat(np.arange(len(layers)), [len(w) for w in worths])
    one_each = csr_array((np.ones(len(worth)), (owners, np.arange(len(worth)))))
    fits = csr_array(taken[None, :] / unit)
    found = milp(
        -worth / scale,
        integrality=np.ones(len(worth)),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(one_each, 1, 1),
            LinearConstraint(fits, -np.inf, capacity // unit),
        ],
        options={"mip_rel_gap": 0, "node_limit": NODES},
    )
    best = _solution(layers, densest(layers, capacity), cost)
    bound = sum(float(w.max()) for w in worths)
    if found.x is not None:
        ends = np.cumsum([len(w) for w in worths])[:-1]
        chosen = [int(np.argmax(part)) for part in np.split(found.x, ends)]
        groups = _filled(layers, _trimmed(layers, chosen, capacity, cost), capacity, cost)
        best = max(best, _solution(layers, groups, cost), key=lambda answer: answer.worth)
        bound = min(bound, -found.mip_dual_bound * scale)
    gap = 0.0 if found.status == 0 else max(0.0, bound - best.worth)
    return Solution(best.groups, best.worth, gap)


def _solution(layers: Sequence[Layer], groups: Sequence[int], cost: float) -> Solution:
    worth = sum(
        float(layer.worth(cost)[count]) for layer, count in zip(layers, groups, strict=True)
    )
    return Solution(tuple(groups), worth)


def _left(layers: Sequence[Layer], groups: Sequence[int], capacity: int) -> int:
    """Bytes that these groups leave; negative if they are too many."""
    taken = (int(layer.taken()[count]) for layer, count in zip(layers, groups, strict=True))
    return capacity - sum(taken)


def _trimmed(
    layers: Sequence[Layer], groups: Sequence[int], capacity: int, cost: float
) -> list[int]:
    """Remove groups that exceed the capacity, which the search respects only within its
    tolerance."""
    trimmed = list(groups)
    while _left(layers, trimmed, capacity) < 0:
        losses = {}
        for i, layer in enumerate(layers):
            if trimmed[i]:
                worth = layer.worth(cost)
                losses[i] = worth[trimmed[i]] - worth[trimmed[i] - 1]
        trimmed[min(losses, key=lambda i: losses[i])] -= 1
    return trimmed


def _filled(
    layers: Sequence[Layer], groups: Sequence[int], capacity: int, cost: float
) -> list[int]:
    """Add groups that fit at no cost, though they save nothing either."""
    filled = list(groups)
    left = _left(layers, filled, capacity)
    for i, layer in enumerate(layers):
        worth = layer.worth(cost)
        while filled[i] < len(layer.sizes) and (
            layer.sizes[filled[i]] <= left and worth[filled[i] + 1] >= worth[filled[i]]
        ):
            left -= int(layer.sizes[filled[i]])
            filled[i] += 1
    return filled
