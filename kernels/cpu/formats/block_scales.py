"""Scales and offsets of dot products in a block, and the dots' initial values, for `lanes` rows of
a packed group."""

from functools import cache
from typing import Any

import numpy as np
from numba import njit

from kernels.cpu.formats.layouts import Layout
from kernels.cpu.isa.simd import (
    Vector,
    convert,
    high_nibbles,
    load,
    low_nibbles,
    mul,
    splat,
    sub,
    zero,
)
from kernels.cpu.isa.tiles import splats, zeros
from kernels.cpu.linear.linear import LANES
from kernels.cpu.runtime.closures import inlined


@cache
def integers_of(layout: Layout, lanes: int) -> tuple[Any, Any]:
    """Two functions of (weight, at): the int32 factors of d for a part whose bytes are at `at`, and
    those of m."""
    bytes_, integers = Vector("i8", lanes), Vector("i32", lanes)
    beyond = 0 if layout.packed_scales else LANES * layout.parts

    @inlined
    def whole(weight, at):
        return convert(integers, load(bytes_, weight, at))

    @inlined
    def low(weight, at):
        return convert(integers, low_nibbles(load(bytes_, weight, at)))

    @inlined
    def high(weight, at):
        return convert(integers, high_nibbles(load(bytes_, weight, at)))

    @inlined
    def after(weight, at):
        return convert(integers, load(bytes_, weight, at + beyond))

    return (low, high) if layout.packed_scales else (whole, after)


def scales_of(layout: Layout, lanes: int) -> tuple[Any, Any]:
    """Two functions of (unit, weight, at): the scale of a part's dots, from its unit's d and the
    integers at byte `at`, and the factor of its activations' total, from m."""
    floats = Vector("f32", lanes)
    integer, minimum = integers_of(layout, lanes)

    @njit(inline="always")
    def alone(unit, weight, at):
        return unit

    @inlined
    def scaled(unit, weight, at):
        return mul(unit, convert(floats, integer(weight, at)))

    @inlined
    def times_min(unit, weight, at):
        return mul(unit, convert(floats, minimum(weight, at)))

    return scaled if layout.integer_scales else alone, times_min if layout.mins else alone


def beginning(layout: Layout, lanes: int, zero_point: bool = True) -> Any:
    """(totals, where, size) -> initial dots of a part's sum: zero where no totals are subtracted,
    since weights have an offset or activations have no `zero_point`."""
    integers = Vector("i32", lanes)

    @njit(inline="always")
    def from_zero(totals, where, size):
        return zeros(integers, size)

    @njit(inline="always")
    def from_totals(totals, where, size):
        return splats(integers, size, totals, where)

    return from_totals if zero_point and not layout.m else from_zero


@cache
def unit_scale(layout: Layout, lanes: int, factor: float = 1) -> Any:
    """(weight, at) -> a unit's d, times the factor."""
    floats, halves = Vector("f32", lanes), Vector("bf16" if layout.bfloat16 else "f16", lanes)
    times = np.float32(factor)

    @inlined
    def scale(weight, at):
        return mul(convert(floats, load(halves, weight, at)), splat(floats, times))

    return scale


@cache
def unit_offset(layout: Layout, lanes: int) -> Any:
    """(weight, at) -> a unit's m, negated where mins multiply it."""
    floats, halves, minus = Vector("f32", lanes), Vector("f16", lanes), layout.mins

    @njit(inline="always")
    def none(weight, at):
        return zero(floats)

    @inlined
    def stored(weight, at):
        m = convert(floats, load(halves, weight, at))
        return sub(zero(floats), m) if minus else m

    return stored if layout.m else none
