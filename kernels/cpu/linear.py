"""How linear's kernels go through their work, whatever the weight's format.

Sixteen rows of the weight travel together, one row a lane; groups of rows are shared among
threads. The activations of some tokens are laid side by side in a panel on the stack, and a tile
of them meets a group of rows in registers. Every output is one chain of fused multiply-adds over
hidden in order (block by block for quantised weights): cutting rows, tokens or hidden elsewhere
changes no bit, so every variant in the default numerics but the fallback `scalar` gives the same.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from numba import njit

from kernels.cpu.closures import inner
from kernels.cpu.share import part
from kernels.cpu.simd import f32x16, prefetch
from kernels.cpu.tiles import in_tiles, load_tile, store_tile, zeros

LANES = 16
# How far ahead weights are asked for, in bytes, where several tokens meet them. A single token's
# stream is regular enough for the hardware, and loses a seventh by asking.
AHEAD = 2048


@dataclass(frozen=True, slots=True)
class Blocking:
    """Sizes of a kernel's loops, measured, not derived.

    - `tiles`: tokens in registers together: the widest first, 1 last.
    - `tokens` and `units`: of a panel, a unit being an element or a block of hidden. Fewer tokens
      make a longer panel; a prompt's panel should stay in the second level of cache.
    - `asks`: from how many tokens on weights of blocks are asked for, how far ahead, and into which
      cache (3 the first, 2 the second).
    """

    tiles: tuple[int, ...]
    tokens: int
    units: int
    asks: tuple[int, int, int] = (2, AHEAD, 3)

    @property
    def size(self) -> int:
        """Units of a panel, tokens times depth."""
        return self.tokens * self.units

    def over(self, blocks: int) -> "Blocking":
        """The same panel in units of so many."""
        return replace(self, units=self.units // blocks)


def filling(fill: Any, tiles: tuple[int, ...]) -> Any:
    """(count, arguments): fill(token, size, arguments) for tiles of these sizes, the widest first,
    until so many tokens are laid down."""

    @inner
    def fill_all(count, arguments):
        token = 0
        for size in tiles:
            while token + size <= count:
                fill(token, size, arguments)
                token += size

    return fill_all


def product(blocking: Blocking, fill: Any, multiply: Callable[[int], Any]) -> Any:
    """The loops around

    - fill(token, size, (source, panel, first, unit, depth)), which lays `depth` units from `unit`
      on of `size` tokens from first + token on into the panel, at token * depth units;
    - multiply(size)(token, (panel, weight, at, depth, out, first, row, begin)), which adds to the
      outputs of these tokens and of the rows packed at byte `at`; the first time, if `begin`.

    A group of rows is `units` times `step` bytes of the packed weight.
    """
    tiles, tokens_at_once, most = blocking.tiles, blocking.tokens, blocking.size
    fill_all, multiply_all = filling(fill, tiles), in_tiles(multiply, tiles)

    @njit(inline="always")
    def run(source, panel, weight, step, units, out, thread, n_threads):
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
                for group in range(begin, end):
                    at = (group * units + unit) * step
                    row = group * LANES
                    multiply_all(0, count, (panel, weight, at, deep, out, first, row, unit == 0))

    return run


def chains(load_weights: Any, step: int, meet: Any) -> Callable[[int], Any]:
    """`multiply` for sums that are one chain over units: load_weights(weight, at) of the group
    meets a word of activations of each token by `meet`, an outer step."""

    def of_size(size: int) -> Any:
        @inner
        def tile(token, arguments):
            (panel,), weight, at, depth, out, first, row, begin = arguments
            valid = min(LANES, out.shape[1] - row)
            sums = zeros(f32x16, size)
            if not begin:
                sums = load_tile(sums, out, first + token, row, valid)
            for k in range(depth):
                if size > 1:
                    prefetch(weight, at + k * step + AHEAD, 3)
                w = load_weights(weight, at + k * step)
                sums = meet(sums, w, panel, token * depth + k * size)
            store_tile(sums, out, first + token, row, valid)

        return tile

    return of_size


def named(kernel: Callable[..., None], variant: str) -> Callable[..., None]:
    """The kernel under its variant's name, by which its compiled form is kept."""
    kernel.__qualname__ = f"{kernel.__qualname__}.{variant}"
    return kernel
