"""Integer quantisation in groups, 2 to 8 bits: symmetric x = s q, asymmetric x = s (q - z).

Jacob et al., Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
Inference (arXiv 1712.05877), section 2.1. The symmetric scheme omits -2^(bits - 1), so that -x has
the negated integers. Defined in float32, so that every correct kernel gives the same bits.
"""

from functools import partial

import numpy as np

from reference.bounds import TINY
from reference.laws.common import alone, contained
from reference.laws.schemes import INTEGERS, negatives_have_the_same_scale
from reference.op import Arguments, Array, Case, Cost, Op, Shape
from reference.values import FINITE

FEWEST, MOST = 2, 8  # bits


def quantise_symmetric(x: Array, bits: int) -> tuple[Array, Array]:
    """scale = max|x| / (2^(bits - 1) - 1) over a group; q = x / scale rounded half to even.

    x float32 [groups, size], bits 2 to 8 -> q int8 [groups, size], scale float32 [groups]. A scale
    below 2^-126 becomes 0, and so does its group's q. A group with a NaN or infinity has scale NaN
    and q 0.
    """
    finite, x = finite_groups(x)
    scale = np.abs(x).max(axis=1, initial=0) / np.float32(2 ** (bits - 1) - 1)
    scale = normal_scales(scale)
    return rounded_quotient(x, scale).astype(np.int8), np.where(finite, scale, np.float32(np.nan))


def quantise_asymmetric(x: Array, bits: int) -> tuple[Array, Array, Array]:
    """scale = (high - low) / (2^bits - 1) over a group's range, extended to include 0;
    q = x / scale rounded half to even, plus the zero point, which maps low to -2^(bits - 1).

    x float32 [groups, size], bits 2 to 8 -> q int8 [groups, size], scale float32 [groups], zero
    int32 [groups]. A scale below 2^-126 becomes 0, and so do its group's q and zero. A group with a
    NaN or infinity has scale NaN, and q and zero 0.
    """
    finite, x = finite_groups(x)
    low, high = x.min(axis=1, initial=0), x.max(axis=1, initial=0)
    steps, least = np.float32(2**bits - 1), np.float32(-(2 ** (bits - 1)))
    scale = normal_scales(high / steps - low / steps)  # high - low could overflow
    zero = np.where(scale > 0, least - rounded_quotient(low[:, None], scale)[:, 0], np.float32(0))
    q = np.clip(rounded_quotient(x, scale) + zero[:, None], least, least + steps)
    scale = np.where(finite, scale, np.float32(np.nan))
    return q.astype(np.int8), scale, zero.astype(np.int32)


def dequantise_symmetric(q: Array, scale: Array) -> Array:
    """q * scale. int8 [groups, size], float32 [groups] -> float32 [groups, size], rounded once."""
    return q.astype(np.float32) * scale[:, None]


def dequantise_asymmetric(q: Array, scale: Array, zero: Array) -> Array:
    """(q - zero) * scale.

    q int8 [groups, size], scale float32 [groups], zero int32 [groups], -128 to 127 -> float32
    [groups, size], rounded once.
    """
    return (q.astype(np.float32) - zero[:, None].astype(np.float32)) * scale[:, None]


def finite_groups(x: Array) -> tuple[Array, Array]:
    """Which groups are finite; x as float32 with zeros for the others."""
    finite = np.asarray(np.isfinite(x).all(axis=1))
    return finite, np.where(finite[:, None], x, 0).astype(np.float32)


def normal_scales(scale: Array) -> Array:
    """Scales in float32's normal range; 0 for smaller ones, too coarse to divide by."""
    return np.where(scale < np.float32(TINY), np.float32(0), scale)


def rounded_quotient(x: Array, scale: Array) -> Array:
    """x / scale rounded half to even, 0 if the scale is. float32 [groups, n], [groups]."""
    return np.rint(quotient(x, scale))


def quotient(x: Array, scale: Array) -> Array:
    """x / scale, 0 if the scale is. float32 [groups, n], [groups] -> float32 [groups, n]."""
    steps = scale[:, None]
    return np.where(steps > 0, x / np.where(steps > 0, steps, np.float32(1)), np.float32(0))


def make_groups(case: Case) -> Array:
    return case.array(case.rng(), case.shape["groups"], case.shape["size"])


def make_quantise_symmetric(case: Case) -> Arguments:
    return _make(case, 0)


def make_quantise_asymmetric(case: Case) -> Arguments:
    return _make(case, 1)


def _make(case: Case, beyond: int) -> Arguments:
    """Of the kind `ties`, multiples of half a step from -top to top, and `beyond` on both sides."""
    bits, x = case.shape["bits"], make_groups(case)
    if case.values == "ties":
        top = 2 ** (bits - 1) - 1
        x = case.rng().integers(-2 * top, 2 * top, x.shape, endpoint=True).astype(np.float32) / 2
        x[:, -1:], x[:, :1] = top + beyond, -top
        x = next_to_ties(case, x)
    return {"x": x, "bits": bits}


def next_to_ties(case: Case, x: Array) -> Array:
    """Every other group times a factor that makes its ties inexact. float32 [groups, size]."""
    factors = case.rng().uniform(1, 2, (len(x), 1)).astype(np.float32)
    factors[::2] = 1
    return x * factors


def make_symmetric(case: Case) -> Arguments:
    q, scale = quantise_symmetric(**make_quantise_symmetric(case))
    return {"q": q, "scale": any_scales(case, scale)}


def make_asymmetric(case: Case) -> Arguments:
    q, scale, zero = quantise_asymmetric(**make_quantise_asymmetric(case))
    return {"q": q, "scale": any_scales(case, scale), "zero": zero}


def any_scales(case: Case, scale: Array) -> Array:
    """Some scales are numbers of the case's kind instead, as files may have them."""
    rng = case.rng()
    return np.where(rng.random(scale.shape) < 0.3, case.array(rng, *scale.shape), scale)


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """Zero: the definition fixes every bit."""
    return {name: np.zeros(value.shape) for name, value in expected.items()}


def cost(shape: Shape, format: str | None) -> Cost:
    elements = shape["groups"] * shape["size"]
    return Cost(elements * (4 + 1) + 4 * shape["groups"], 4 * elements)


def fit(shape: Shape, format: str | None) -> Shape:
    return {**shape, "bits": min(max(shape["bits"], FEWEST), MOST)}


def unknown_bits(inputs: Arguments) -> str:
    return "" if FEWEST <= inputs["bits"] <= MOST else f"bits is {inputs['bits']}, not 2 to 8"


def no_zero_point(name: str, zero: Array) -> str:
    """A complaint about the first zero point outside int8, or ""."""
    bad = zero[(zero < -128) | (zero > 127)]
    return f"{name} holds {bad[0]}, not in -128 to 127" if bad.size else ""


def bad_zero(inputs: Arguments) -> str:
    return no_zero_point("zero", inputs["zero"])


GROUPS: dict[str, tuple[int, ...]] = {
    "groups": (1, 2, 7, 9, 33),
    "size": (1, 2, 31, 33, 64, 127, 129, 256),
}
MANY = {"groups": 7, "size": 256}  # enough elements to include near ties
OF_MODELS: tuple[dict[str, int], ...] = (
    {"groups": 0, "size": 33},
    {"groups": 513, "size": 33},
    {"groups": 65_600, "size": 3},
    {"groups": 5, "size": 14_336},
    {"groups": 1, "size": 131_200},  # a tensor
)
TIES_FIRST = ("ties", *(kind for kind in FINITE if kind != "ties"))  # which corners are made of
BITS: dict[str, tuple[int, ...]] = {"bits": (2, 3, 4, 5, 6, 7, 8)}
ANY_FLOAT32 = 2.0**127  # the end of the domain

_row = partial(
    Op,
    axes=GROUPS | BITS,
    bound=bound,
    cost=cost,
    fit=fit,
    nan="token",
    largest=ANY_FLOAT32,
    varying=("groups",),
)
_quantise = partial(
    _row,
    values=TIES_FIRST,
    corners=(
        MANY | {"bits": 8},
        MANY | {"bits": 5},
        *(sizes | {"bits": bits} for sizes, bits in zip(OF_MODELS, (8, 8, 4, 3, 8), strict=True)),
    ),
    complaint=unknown_bits,
)
_dequantise = partial(_row, corners=OF_MODELS)

SYMMETRIC = "x: f32[groups size], bits: i64 -> q: i8[groups size], scale: f32[groups]"
ASYMMETRIC = (
    "x: f32[groups size], bits: i64 -> q: i8[groups size], scale: f32[groups], zero: i32[groups]"
)
FROM_SYMMETRIC = "q: i8[groups size], scale: f32[groups] -> out: f32[groups size]"
FROM_ASYMMETRIC = (
    "q: i8[groups size], scale: f32[groups], zero: i32[groups] -> out: f32[groups size]"
)

OPS = (
    _quantise(
        name="quantise_symmetric",
        reference=quantise_symmetric,
        signature=SYMMETRIC,
        make=make_quantise_symmetric,
        laws=(
            alone(SYMMETRIC, make_quantise_symmetric, "groups"),
            negatives_have_the_same_scale(np.negative),
            *INTEGERS,
        ),
    ),
    _quantise(
        name="quantise_asymmetric",
        reference=quantise_asymmetric,
        signature=ASYMMETRIC,
        make=make_quantise_asymmetric,
        laws=(alone(ASYMMETRIC, make_quantise_asymmetric, "groups"), *INTEGERS),
    ),
    _dequantise(
        name="dequantise_symmetric",
        reference=dequantise_symmetric,
        signature=FROM_SYMMETRIC,
        make=make_symmetric,
        laws=(
            alone(FROM_SYMMETRIC, make_symmetric, "groups"),
            contained(FROM_SYMMETRIC, make_symmetric, "groups"),
        ),
    ),
    _dequantise(
        name="dequantise_asymmetric",
        reference=dequantise_asymmetric,
        signature=FROM_ASYMMETRIC,
        make=make_asymmetric,
        complaint=bad_zero,
        laws=(
            alone(FROM_ASYMMETRIC, make_asymmetric, "groups"),
            contained(FROM_ASYMMETRIC, make_asymmetric, "groups"),
        ),
    ),
)
