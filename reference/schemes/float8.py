"""FP8 with a float32 scale for each group, x = s q: E4M3 and E5M2.

Micikevicius et al., FP8 Formats for Deep Learning (arXiv 2209.05433), and OCP's specification: E4M3
has no infinity and one NaN of each sign, so 448 is its largest number; E5M2 follows IEEE 754 and is
the upper half of a float16. Defined in float32, so that kernels give the same bits.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from reference.laws.common import alone, contained
from reference.laws.schemes import QUANTISING, negatives_have_the_same_scale
from reference.op import Arguments, Array, Case, Op
from reference.schemes.integers import (
    ANY_FLOAT32,
    GROUPS,
    MANY,
    OF_MODELS,
    TIES_FIRST,
    any_scales,
    bound,
    cost,
    finite_groups,
    make_groups,
    next_to_ties,
    normal_scales,
    quotient,
)
from reference.values import FINITE

SIGN = 0x80


@dataclass(frozen=True, slots=True)
class Float8:
    """A sign, an exponent and `fraction` bits; codes without their sign run up to `last`, whose
    value is `largest`. The smallest normal number is 2^lowest. Overflow becomes the code after the
    last: NaN in E4M3, infinity in E5M2. NaN becomes the code `nan`."""

    fraction: int
    lowest: int
    last: int
    largest: float
    nan: int

    def encode(self, x: Array) -> Array:
        """Round to nearest even. float32 [...] -> uint8 [...]."""
        size = np.abs(np.where(np.isnan(x), 0, x)).astype(np.float64)
        size = np.minimum(size, 2 * self.largest)
        exponent = np.where(size > 0, np.frexp(size)[1] - 1, self.lowest)
        exponent = np.maximum(exponent, self.lowest)
        steps = np.rint(np.ldexp(size, self.fraction - exponent))  # a whole 2^fraction carries
        code = (exponent - self.lowest) * 2**self.fraction + steps
        code = np.where(code > self.last, self.last + 1, code)
        code = np.where(np.isnan(x), self.nan, code).astype(np.uint8)
        return np.where(np.signbit(x), code | SIGN, code).astype(np.uint8)

    def decode(self, codes: Array) -> Array:
        """uint8 [...] -> float32 [...], exact."""
        code = codes.astype(np.int64) & ~SIGN
        normal = np.maximum((code >> self.fraction) - 1, 0)
        whole = code - normal * 2**self.fraction
        value = np.ldexp(whole.astype(np.float32), normal + self.lowest - self.fraction)
        value = np.where(code > self.last, np.float32(np.nan), value)
        if self.nan > self.last + 1:
            value = np.where(code == self.last + 1, np.float32(np.inf), value)
        return np.where(codes & SIGN, -value, value).astype(np.float32)


E4M3 = Float8(fraction=3, lowest=-6, last=0x7E, largest=448.0, nan=0x7F)
E5M2 = Float8(fraction=2, lowest=-14, last=0x7B, largest=57344.0, nan=0x7E)


def quantise_e4m3(x: Array) -> tuple[Array, Array]:
    """scale = max|x| / 448 over a group; q = the E4M3 number nearest to x / scale, ties to even.

    x float32 [groups, size] -> q uint8 [groups, size], scale float32 [groups]. A scale below 2^-126
    becomes 0, and so does its group's q. A group with a NaN or infinity has scale NaN and q 0.
    """
    return quantised(x, E4M3)


def quantise_e5m2(x: Array) -> tuple[Array, Array]:
    """quantise_e4m3 with 57344 and the nearest E5M2 number; shapes as for it."""
    return quantised(x, E5M2)


def quantised(x: Array, kind: Float8) -> tuple[Array, Array]:
    """quantise_e4m3 for either kind; shapes as for it."""
    finite, x = finite_groups(x)
    scale = normal_scales(np.abs(x).max(axis=1, initial=0) / np.float32(kind.largest))
    q = np.where(scale[:, None] > 0, kind.encode(quotient(x, scale)), np.uint8(0))
    return q, np.where(finite, scale, np.float32(np.nan))


def dequantise_e4m3(q: Array, scale: Array) -> Array:
    """The E4M3 number times scale.

    q uint8 [groups, size], scale float32 [groups] -> float32 [groups, size], rounded once.
    """
    return E4M3.decode(q) * scale[:, None]


def dequantise_e5m2(q: Array, scale: Array) -> Array:
    """The E5M2 number times scale; shapes as for dequantise_e4m3."""
    return E5M2.decode(q) * scale[:, None]


def make_quantise(kind: Float8, case: Case) -> Arguments:
    return {"x": _values(case, kind)}


def _values(case: Case, kind: Float8) -> Array:
    """Of the kind `ties`, halfway points between neighbours, and the largest number."""
    x = make_groups(case)
    if case.values == "ties":
        codes = case.rng().integers(0, kind.last, x.shape) | np.where(x < 0, SIGN, 0)
        x = (kind.decode(codes) + kind.decode(codes + 1)) / 2
        x[:, :1] = kind.largest
        x = next_to_ties(case, x)
    return x


def make_dequantise(kind: Float8, case: Case) -> Arguments:
    q, scale = quantised(_values(case, kind), kind)
    return {"q": any_codes(case, kind, q), "scale": any_scales(case, scale)}


def any_codes(case: Case, kind: Float8, q: Array) -> Array:
    """Codes, some of them infinity or NaN if that is the case's kind."""
    if case.values in FINITE:
        return q
    rng, odd = case.rng(), np.array([kind.last + 1, kind.nan], np.uint8)
    signs = rng.choice(np.array([0, SIGN], np.uint8), q.shape)
    return np.where(rng.random(q.shape) < 0.01, rng.choice(odd, q.shape) | signs, q)


OTHER_SIGN = negatives_have_the_same_scale(lambda q: q ^ np.uint8(SIGN))
QUANTISE = "x: f32[groups size] -> q: u8[groups size], scale: f32[groups]"
DEQUANTISE = "q: u8[groups size], scale: f32[groups] -> out: f32[groups size]"


def _quantising(kind: Float8, name: str, reference: Callable[..., Any]) -> Op:
    make = partial(make_quantise, kind)
    return Op(
        name=name,
        reference=reference,
        signature=QUANTISE,
        axes=GROUPS,
        make=make,
        bound=bound,
        cost=cost,
        values=TIES_FIRST,
        corners=(MANY, *OF_MODELS),
        nan="token",
        largest=ANY_FLOAT32,
        varying=("groups",),
        laws=(alone(QUANTISE, make, "groups"), OTHER_SIGN, *QUANTISING),
    )


def _dequantising(kind: Float8, name: str, reference: Callable[..., Any]) -> Op:
    make = partial(make_dequantise, kind)
    return Op(
        name=name,
        reference=reference,
        signature=DEQUANTISE,
        axes=GROUPS,
        make=make,
        bound=bound,
        cost=cost,
        corners=OF_MODELS,
        nan="token",
        largest=ANY_FLOAT32,
        varying=("groups",),
        laws=(alone(DEQUANTISE, make, "groups"), contained(DEQUANTISE, make, "groups")),
    )


OPS = (
    _quantising(E4M3, "quantise_e4m3", quantise_e4m3),
    _quantising(E5M2, "quantise_e5m2", quantise_e5m2),
    _dequantising(E4M3, "dequantise_e4m3", dequantise_e4m3),
    _dequantising(E5M2, "dequantise_e5m2", dequantise_e5m2),
)
