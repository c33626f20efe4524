"""What dots in a block are multiplied by, and begin with, for `lanes` rows of a packed group."""

from typing import Any

from numba import njit

from kernels.cpu.formats.layouts import Layout
from kernels.cpu.isa.simd import Vector, convert, high_nibbles, load, low_nibbles, sub, zero
from kernels.cpu.isa.tiles import splats, zeros
from kernels.cpu.linear.linear import LANES


def integers_of(layout: Layout, lanes: int) -> tuple[Any, Any]:
    """Two functions of (weight, at): the integers that multiply d, and those that multiply m, as
    floats."""
    bytes_, floats = Vector("i8", lanes), Vector("f32", lanes)
    beyond = 0 if layout.halves else LANES * layout.parts

    @njit(inline="always")
    def whole(weight, at):
        return convert(floats, load(bytes_, weight, at))

    @njit(inline="always")
    def low(weight, at):
        return convert(floats, low_nibbles(load(bytes_, weight, at)))

    @njit(inline="always")
    def high(weight, at):
        return convert(floats, high_nibbles(load(bytes_, weight, at)))

    @njit(inline="always")
    def after(weight, at):
        return convert(floats, load(bytes_, weight, at + beyond))

    return (low, high) if layout.halves else (whole, after)


def beginning(layout: Layout, lanes: int) -> Any:
    """(totals, where, size) -> the dots that a part's sum begins with."""
    integers = Vector("i32", lanes)

    @njit(inline="always")
    def from_zero(totals, where, size):
        return zeros(integers, size)

    @njit(inline="always")
    def from_totals(totals, where, size):
        return splats(integers, size, totals, where)

    return from_zero if layout.m else from_totals


def offset_scale(layout: Layout, lanes: int) -> Any:
    """(weight, at) -> a unit's m, or minus it where floors multiply it."""
    floats, halves, minus = Vector("f32", lanes), Vector("f16", lanes), layout.floors

    @njit(inline="always")
    def none(weight, at):
        return zero(floats)

    @njit(inline="always")
    def stored(weight, at):
        m = convert(floats, load(halves, weight, at))
        return sub(zero(floats), m) if minus else m

    return stored if layout.m else none
