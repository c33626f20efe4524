"""e^x of vectors."""

from numba import njit

from kernels.cpu.isa.simd import (
    add,
    constant,
    f32x16,
    fma,
    lanewise,
    maximum,
    mul,
    polynomial,
    round_even,
    splat,
    sub,
    zero,
)


@lanewise
def _ldexp(builder, kind, v, n):
    """v * 2^n for a whole float n, added to v's exponent: v and the result are normal numbers."""
    i32 = kind.of("i32").ir
    steps = builder.shl(builder.fptosi(n, i32), constant(i32, 23))
    return builder.bitcast(builder.add(builder.bitcast(v, i32), steps), kind.ir)


@lanewise
def _exp_range(builder, kind, x, y):
    """y where exp(x) is a normal number; 0 below, infinity above, NaN for NaN."""
    below = builder.fcmp_ordered("<", x, constant(kind.ir, -87.336540))
    above = builder.fcmp_ordered(">", x, constant(kind.ir, 88.72283))
    y = builder.select(below, constant(kind.ir, 0.0), y)
    y = builder.select(above, constant(kind.ir, float("inf")), y)
    return builder.select(builder.fcmp_unordered("uno", x, x), x, y)


_of_r = polynomial(
    1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1,
    5.0000001201e-1,
)  # fmt: skip


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
    y = add(fma(_of_r(r), mul(r, r), r), splat(f32x16, 1.0))
    return _exp_range(x, _ldexp(y, n))
