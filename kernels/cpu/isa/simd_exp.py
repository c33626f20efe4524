"""e^x of vectors."""

from typing import Any

from llvmlite import ir
from numba import njit
from numba.extending import intrinsic

from kernels.cpu.isa.simd import (
    I32,
    add,
    f32x16,
    fma,
    maximum,
    mul,
    round_even,
    splat,
    sub,
    zero,
)


@intrinsic
def _ldexp(typing, v, n):
    """v * 2^n for a whole float n, added to v's exponent: v and the result are normal numbers."""

    def codegen(context, builder, signature, values):
        i32 = ir.VectorType(I32, v.lanes)
        steps = builder.shl(builder.fptosi(values[1], i32), ir.Constant(i32, [23] * v.lanes))
        return builder.bitcast(builder.add(builder.bitcast(values[0], i32), steps), v.ir)

    return v(v, v), codegen


@intrinsic
def _exp_range(typing, x, y):
    """y where exp(x) is a normal number; 0 below, infinity above, NaN for NaN."""

    def codegen(context, builder, signature, values):
        x_value, y_value = values

        def constant(value: Any) -> Any:
            return ir.Constant(x.ir, [value] * x.lanes)

        below = builder.fcmp_ordered("<", x_value, constant(-87.336540))
        above = builder.fcmp_ordered(">", x_value, constant(88.72283))
        y_value = builder.select(below, constant(0.0), y_value)
        y_value = builder.select(above, constant(float("inf")), y_value)
        return builder.select(builder.fcmp_unordered("uno", x_value, x_value), x_value, y_value)

    return x(x, x), codegen


@njit(inline="always")
def exp(x):
    """e^x of f32x16 within 2 units in the last place (Cephes' expf); subnormal results are 0.

    x = n ln 2 + r with ln 2 in two parts so that r is exact, a polynomial for e^r, times 2^n.
    """
    # maximum() with a NaN gives its second argument, so the integer conversion is always defined
    clamped = maximum(x, splat(f32x16, -87.5))
    clamped = sub(zero(f32x16), maximum(sub(zero(f32x16), clamped), splat(f32x16, -88.8)))
    n = round_even(mul(clamped, splat(f32x16, 1.44269504088896341)))
    r = fma(n, splat(f32x16, -0.693359375), clamped)
    r = fma(n, splat(f32x16, 2.12194440e-4), r)
    p = fma(splat(f32x16, 1.9875691500e-4), r, splat(f32x16, 1.3981999507e-3))
    p = fma(p, r, splat(f32x16, 8.3334519073e-3))
    p = fma(p, r, splat(f32x16, 4.1665795894e-2))
    p = fma(p, r, splat(f32x16, 1.6666665459e-1))
    p = fma(p, r, splat(f32x16, 5.0000001201e-1))
    y = add(fma(p, mul(r, r), r), splat(f32x16, 1.0))
    return _exp_range(x, _ldexp(y, n))
