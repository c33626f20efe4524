"""How linear's kernels go through their work, whatever the weight's format.

Sixteen rows of the weight travel together, one row a lane; groups of rows are shared among
threads. The activations of some tokens are laid side by side in a panel on the stack, and a tile
of them meets a group of rows in registers. Every output is one chain of fused multiply-adds over
hidden in order (block by block for quantised weights): cutting rows, tokens or hidden elsewhere
changes no bit, so every variant in the default numerics but the fallback `scalar` gives the same.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numba import njit

from kernels.cpu.isa.simd import CACHE_LINE, f32x16, prefetch, prefetch_to_write
from kernels.cpu.isa.tiles import in_tiles, load_tile, store_tile, zeros
from kernels.cpu.runtime.closures import inlined, inner
from kernels.cpu.runtime.share import part
from kernels.knob import Knob

LANES = 16
DISTANCES = (0, 512, 1024, 2048, 4096, 8192, 16384)
STREAM = (
    Knob("ahead", DISTANCES, 0, "bytes ahead of one token's weights that are asked for; 0: none"),
    Knob("ahead_many", DISTANCES, 2048, "the same where several tokens meet the weights", (4, 16)),
    Knob("near", (0, 1), 1, "whether into the first cache, or else into the second"),
)
STREAMS = Knob("streams", (1, 2), 2, "how many a thread reads of one token's weights")
KNOBS = (*STREAM, STREAMS)  # of those that have `two_at_once`
STREAMS_AT = len(STREAM)

# For a token, and for one: Numba would compile the callee twice for a literal.
FIRST, ONE = np.int64(0), np.int64(1)
NEVER = 0, 0, 0  # values of STREAM's knobs: no prefetching


@dataclass(frozen=True, slots=True)
class Blocking:
    """Sizes of a kernel's loops, measured, not derived.

    - `tiles`: tokens in registers together: the widest first, 1 last.
    - `tokens` and `units`: of a panel, a unit being an element or a block of hidden. Fewer tokens
      make a longer panel; a prompt's panel should stay in the second level of cache.
    - `groups` of rows in a tile, one or two.
    """

    tiles: tuple[int, ...]
    tokens: int
    units: int
    groups: int = 1

    @property
    def size(self) -> int:
        """Units of a panel, tokens times depth."""
        return self.tokens * self.units

    def over(self, blocks: int) -> "Blocking":
        """The same panel in units of so many."""
        return replace(self, units=self.units // blocks)


@njit(inline="always")
def from_here(tokens, crossover):
    """Whether a step of so many tokens is past a crossover knob's value."""
    return 0 < crossover <= tokens


def prefetcher(size: int, count: int) -> Any:
    """(weight, at, tuning): prefetch `count` bytes of weights after byte `at`, at the distance that
    STREAM's knobs give for a tile of `size` tokens."""
    return _prefetcher(0 if size == 1 else 1, count)


@cache
def _prefetcher(which: int, count: int) -> Any:
    @inlined
    def prefetch_next(weight, at, tuning):
        ahead, near = tuning[which], tuning[2]
        if ahead:
            if near:
                for line in range(at + ahead, at + ahead + count, CACHE_LINE):
                    prefetch(weight, line, 3)
            else:
                for line in range(at + ahead, at + ahead + count, CACHE_LINE):
                    prefetch(weight, line, 2)

    return prefetch_next


@njit(inline="always")
def prefetch_part(weight, at, size, number, count):
    """Prefetch part `number` of so many of the next `size` bytes into the second cache."""
    for line in range(number * size // count, (number + 1) * size // count, CACHE_LINE):
        prefetch(weight, at + line, 2)


@njit(inline="always")
def prefetch_outputs(out, token, size, row):
    """Prefetch the outputs of `size` tokens from `token`, of the group whose first row is `row`;
    tokens may lie beyond the last, since a prefetch never faults."""
    for t in range(token, token + size):
        prefetch_to_write(out, t * out.shape[1] + row)


def filling(fill: Any, tiles: tuple[int, ...]) -> Any:
    """(count, arguments): call fill(token, size, arguments) for tiles of these sizes, the widest
    first, until so many tokens are laid out."""

    @inner
    def fill_all(count, arguments):
        token = FIRST
        for size in tiles:
            while token + size <= count:
                fill(token, size, arguments)
                token += size

    return fill_all


@njit(inline="always")
def one_group(group, end, units, unit, step):
    """Where a group's units from `unit` are packed, and its first row."""
    return (group * units + unit) * step, group * LANES


@njit(inline="always")
def two_groups(group, end, units, unit, step):
    """The same for a group and the next; a lone last group is used twice."""
    beside = min(group + 1, end - 1)
    at, at_beside = (group * units + unit) * step, (beside * units + unit) * step
    return (at, at_beside), (group * LANES, beside * LANES)


@njit(inline="always")
def two_at_once(begin, end, tuning):
    """How a thread iterates over groups of rows, two at a time: the number of steps, the distance
    to the next two, and the distance between the two: neighbours, so that weights are one stream,
    or two streams from its halves. Where the second would be beyond the last, the last is used."""
    times = (end - begin + 1) // 2
    if tuning[STREAMS_AT] == 1:
        return times, 2, 1
    return times, 1, times


PLACES = {1: one_group, 2: two_groups}


def product(blocking: Blocking, fill: Any, multiply: Callable[[int], Any]) -> Any:
    """The loops around

    - fill(token, size, (source, panel, first, unit, depth)), which lays `depth` units from `unit`
      on of `size` tokens from first + token on into the panel, at token * depth units;
    - multiply(size)(token, (panel, weight, at, depth, out, first, row, begin, tuning)), which adds
      to the outputs of these tokens and of the rows packed at byte `at`: the first, if `begin`.
      Where the blocking says two groups, `at` and `row` are tuples of two.

    A group of rows is `units` times `step` bytes of the packed weight.
    """
    tiles, tokens_at_once, most = blocking.tiles, blocking.tokens, blocking.size
    fill_all, multiply_all = filling(fill, tiles), in_tiles(multiply, tiles)
    groups, place_of = blocking.groups, PLACES[blocking.groups]

    @njit(inline="always")
    def run(source, panel, weight, step, units, out, tuning, thread, n_threads):
        tokens = out.shape[0]
        begin, end = part((out.shape[1] + LANES - 1) // LANES, thread, n_threads)
        if begin == end:
            return
        for first in range(0, tokens, tokens_at_once):
            count = min(tokens_at_once, tokens - first)
            depth = most // count
            for unit in range(0, units, depth):
                deep = min(depth, units - unit)
                fill_all(count, (source, panel, first, unit, deep))
                for group in range(begin, end, groups):
                    at, row = place_of(group, end, units, unit, step)
                    own = out, first, row, unit == 0
                    multiply_all(FIRST, count, (panel, weight, at, deep, *own, tuning))

    return run


def chains(load_weights: Any, step: int, multiply_add: Any) -> Callable[[int], Any]:
    """`multiply` for sums that are one chain over units: load_weights(weight, at) of the group
    times a word of activations of each token, by the outer step `multiply_add`. A cache
    line's units are unrolled: on a core that hyper-threads share, each instruction counts."""

    every = max(1, CACHE_LINE // step)  # units in a line of the cache

    def of_size(size: int) -> Any:
        prefetch_next = prefetcher(size, step)

        @inner
        def tile(token, arguments):
            (panel,), weight, at, depth, out, first, row, begin, tuning = arguments
            valid = min(LANES, out.shape[1] - row)
            sums = zeros(f32x16, size)
            if not begin:
                sums = load_tile(sums, out, first + token, row, valid)
            prefetch_outputs(out, first + token + size, size, row)
            whole = depth // every * every
            for line in range(0, whole, every):
                prefetch_next(weight, at + line * step, tuning)
                for k in range(line, line + every):
                    w = load_weights(weight, at + k * step)
                    sums = multiply_add(sums, w, panel, token * depth + k * size)
            for k in range(whole, depth):
                w = load_weights(weight, at + k * step)
                sums = multiply_add(sums, w, panel, token * depth + k * size)
            store_tile(sums, out, first + token, row, valid)

        return tile

    return of_size


def named(kernel: Callable[..., None], variant: str) -> Callable[..., None]:
    """Name the kernel after its variant, under which its compiled form is stored."""
    kernel.__qualname__ = f"{kernel.__qualname__}.{variant}"
    return kernel
