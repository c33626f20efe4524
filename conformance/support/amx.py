"""Single-tile products, for tests of AMX and its emulation."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import njit
from numpy.testing import assert_array_equal

from kernels.cpu.isa.amx import configure, release, tile_config, tile_load, tile_state, tile_store
from reference.op import Array


@cache
def product(tag: Any, operation: Any) -> Callable[..., None]:
    """c += a b of one tile each, given a row's bytes of each array."""

    @njit
    def multiply(config, a, a_stride, b, b_stride, c, c_stride):
        state = tile_state(tag)
        configure(tag, state, config)
        tile_load(tag, state, 3, c, 0, c_stride)
        tile_load(tag, state, 0, a, 1, a_stride)
        tile_load(tag, state, 7, b, 0, b_stride)
        operation(tag, state, 3, 0, 7)
        tile_store(tag, state, 3, c, 0, c_stride)
        release(tag, state)

    return multiply


def operands(kind: str, rows: int, columns: int, depth: int, seed: int) -> tuple[Array, ...]:
    """a [rows, k], b [k, columns] and the initial c, all with extremes among them."""
    rng = np.random.default_rng(seed)
    if kind == "bf16":
        k, shapes = 2 * depth, ((rows, 2 * depth), (2 * depth, columns), (rows, columns))
        tiny = [0, -0.0, 2.0**-127, -(2.0**-130), 2.0**-126, 2.0**-70, 3e38, -3e38, np.inf, np.nan]
        a, b, c = (rng.standard_normal(s) * 2.0 ** rng.integers(-9, 9, s) for s in shapes)
        for x in (a, b, c):
            odd = rng.random(x.shape) < (1 / 64 if seed else 0)
            x[odd] = rng.choice(tiny, odd.sum())
        halves = [x.astype(np.float32).view(np.uint32) >> 16 for x in (a, b)]
        return *(h.astype(np.uint16) for h in halves), c.astype(np.float32)
    k, first = 4 * depth, np.uint8 if kind == "u8" else np.int8
    limits = np.iinfo(first)
    a = rng.integers(limits.min, limits.max, (rows, k), first, endpoint=True)
    b = rng.integers(-128, 128, (k, columns)).astype(np.int8)
    if seed:
        a[:], b[:] = limits.min or limits.max, -128
    c = rng.integers(-(2**31), 2**31, (rows, columns)).astype(np.int32)
    return a, b, c


def by_tiles(tag: Any, operation: Any, a: Array, b: Array, c: Array) -> Array:
    """c + a b, with strides larger than the rows."""
    group = 4 // a.itemsize
    depth, columns = a.shape[1] // group, b.shape[1]
    wide_a = np.full((len(a), a.shape[1] + 9), 77, a.dtype)
    wide_a[:, 1 : 1 + a.shape[1]] = a  # the kernel starts at element 1
    wide_b = np.full((depth, group * columns + 5), 77, b.dtype)
    pairs = b.reshape(depth, group, columns).transpose(0, 2, 1)
    wide_b[:, : group * columns] = pairs.reshape(depth, -1)
    wide_c = np.full((len(a), columns + 3), 77, c.dtype)
    wide_c[:, :columns] = c
    shapes = [(1, 4)] * 8
    shapes[3], shapes[0] = (len(a), 4 * columns), (len(a), 4 * depth)
    shapes[7] = depth, 4 * columns
    stride_a, stride_b, stride_c = (x.strides[0] for x in (wide_a, wide_b, wide_c))
    run = product(tag, operation)
    run(tile_config(*shapes), wide_a, stride_a, wide_b, stride_b, wide_c, stride_c)
    assert_array_equal(wide_c[:, columns:], 77)
    return wide_c[:, :columns]
