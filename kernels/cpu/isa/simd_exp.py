"""e^x of vectors."""

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
from kernels.cpu.runtime.closures import inlined

LOG2_E = 1.44269504088896341
LOWEST = -87.336540  # below it e^x is no normal number


@lanewise
def _ldexp(builder, kind, v, n):
    """v * 2^n for an integral float n, added to v's exponent: v and the result are normal
    numbers."""
    i32 = kind.of("i32").ir
    steps = builder.shl(builder.fptosi(n, i32), constant(i32, 23))
    return builder.bitcast(builder.add(builder.bitcast(v, i32), steps), kind.ir)


@lanewise
def _exp_range(builder, kind, x, y):
    """y where exp(x) is a normal number; 0 below, infinity above, NaN for NaN."""
    below = builder.fcmp_ordered("<", x, constant(kind.ir, LOWEST))
    above = builder.fcmp_ordered(">", x, constant(kind.ir, 88.72283))
    y = builder.select(below, constant(kind.ir, 0.0), y)
    y = builder.select(above, constant(kind.ir, float("inf")), y)
    return builder.select(builder.fcmp_unordered("uno", x, x), x, y)


_of_r = polynomial(
    1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1,
    5.0000001201e-1,
)  # fmt: skip


# Adding this rounds to the nearest integer and leaves it, plus 127, in the lowest bits of the
# sum: the exponent of 2 to its power.
WHOLE = 1.5 * 2**23 + 127


@lanewise
def _times_power(builder, kind, v, whole, x):
    """v * 2^n from the sum `whole` of WHOLE and n; 0 where x is below the range of normal
    results."""
    i32 = kind.of("i32").ir
    power = builder.shl(builder.bitcast(whole, i32), constant(i32, 23))
    scaled = builder.fmul(v, builder.bitcast(power, kind.ir))
    below = builder.fcmp_ordered("<", x, constant(kind.ir, LOWEST))
    return builder.select(below, constant(kind.ir, 0.0), scaled)


@inlined
def exp_of_negative(x):
    """exp of values at most 0, minus infinity included, or NaN: with fewer instructions, and as
    exact."""
    whole = fma(x, splat(f32x16, LOG2_E), splat(f32x16, WHOLE))
    n = sub(whole, splat(f32x16, WHOLE))
    r = fma(n, splat(f32x16, -0.693359375), x)
    r = fma(n, splat(f32x16, 2.12194440e-4), r)
    y = add(fma(_of_r(r), mul(r, r), r), splat(f32x16, 1.0))
    return _times_power(y, whole, x)


@inlined
def exp(x):
    """e^x of f32x16 within 2 units in the last place (Cephes' expf); subnormal results are 0.

    x = n ln 2 + r with ln 2 in two parts so that r is exact, a polynomial for e^r, times 2^n.
    """
    # maximum() with a NaN gives its second argument, so the integer conversion is always defined
    clamped = maximum(x, splat(f32x16, -87.5))
    clamped = sub(zero(f32x16), maximum(sub(zero(f32x16), clamped), splat(f32x16, -88.8)))
    n = round_even(mul(clamped, splat(f32x16, LOG2_E)))
    r = fma(n, splat(f32x16, -0.693359375), clamped)
    r = fma(n, splat(f32x16, 2.12194440e-4), r)
    y = add(fma(_of_r(r), mul(r, r), r), splat(f32x16, 1.0))
    return _exp_range(x, _ldexp(y, n))
