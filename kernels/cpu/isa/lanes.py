"""Formulas on vectors of floats: operators, comparisons and selection, lane by lane.

With `kernels.cpu.isa.lanes` imported, compiled code may write a * b + c of vectors, or of a vector
and a float32, which is broadcast. Nothing is contracted or reordered: each operator rounds once, as
NumPy's do.
"""

import operator
from typing import Any

from numba import types
from numba.extending import intrinsic, overload

from kernels.cpu.isa.simd import (
    Vector,
    add,
    broadcast,
    call_llvm,
    div,
    lanewise,
    mul,
    sub,
    suffix,
)


@intrinsic
def alike(typing, v, scalar):
    """The float32 broadcast to a vector like v."""

    def codegen(context, builder, signature, values):
        return broadcast(builder, v, values[1])

    return v(v, types.float32), codegen


def _operators() -> None:
    for symbol, of_vectors in (
        (operator.add, add), (operator.sub, sub), (operator.mul, mul), (operator.truediv, div),
    ):  # fmt: skip
        overload(symbol)(_meaning(of_vectors))
    for symbol in (operator.lt, operator.gt, operator.eq):
        overload(symbol)(_meaning(_comparison(symbol)))


def _meaning(of_vectors: Any) -> Any:
    def meaning(a, b):
        if isinstance(a, Vector) and a == b:
            return lambda a, b: of_vectors(a, b)
        if isinstance(a, Vector) and isinstance(b, types.Float):
            return lambda a, b: of_vectors(a, alike(a, b))
        if isinstance(b, Vector) and isinstance(a, types.Float):
            return lambda a, b: of_vectors(alike(b, a), b)
        return None

    return meaning


def _comparison(symbol: Any) -> Any:
    """An intrinsic that returns the mask; false where either is NaN."""
    sign = {operator.lt: "<", operator.gt: ">", operator.eq: "=="}[symbol]

    @intrinsic
    def compare(typing, a, b):
        def codegen(context, builder, signature, values):
            return builder.fcmp_ordered(sign, *values)

        return a.of("i1")(a, a), codegen

    return compare


@intrinsic
def where(typing, condition, a, b):
    """a where the condition holds, b elsewhere."""

    def codegen(context, builder, signature, values):
        return builder.select(*values)

    return a(condition, a, a), codegen


@lanewise
def both(builder, kind, a, b):
    """Where both conditions hold."""
    return builder.and_(a, b)


@lanewise
def fabs(builder, kind, v):
    """The magnitude."""
    return call_llvm(builder, f"llvm.fabs.{suffix(kind)}", kind.ir, [v])


@lanewise
def root(builder, kind, v):
    """The square root."""
    return call_llvm(builder, f"llvm.sqrt.{suffix(kind)}", kind.ir, [v])


@intrinsic
def within(typing, v, low, high):
    """Clamp to [low, high], two float32s; `low` for NaN."""

    def codegen(context, builder, signature, values):
        value, *limits = values
        for limit, sign in zip(limits, "><", strict=True):
            lanes = broadcast(builder, v, limit)
            value = builder.select(builder.fcmp_ordered(sign, value, lanes), value, lanes)
        return value

    return v(v, types.float32, types.float32), codegen


_operators()
