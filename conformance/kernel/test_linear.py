"""linear across kernels: variants agree bit for bit, and few tokens next to a library's products of
many."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from conformance.support.machine_kernels import HERE, inputs_of, run, serves
from kernels.call import AnyKernel
from kernels.cpu.linear.linear_pairs import HALVES
from kernels.table import KERNELS
from reference.formats import FORMATS
from reference.table import OPS

HIDDEN, OUT = 256, 65
APART = [k for k in HERE if (k.op, k.target, k.numerics) == ("linear", "cuda", "fast")]
ONE_ORDER = [k for k in HERE if k.op == "linear" and k not in APART]
CUTTING = [k for k in ONE_ORDER if k.variant != "scalar"]  # scalar cuts nothing
every_variant = pytest.mark.parametrize(
    "of",
    [
        pytest.param([k for k in CUTTING if serves(k)], id="that serve"),
        pytest.param(CUTTING, marks=pytest.mark.exhaustive, id="all"),
    ],
)


def each_of(kernels: list[AnyKernel]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kernel", kernels, ids=[kernel.name for kernel in kernels])


@each_of(APART)
@pytest.mark.parametrize("tokens", [2, 4, 8])
def test_few_tokens_have_the_bits_of_single_tokens(kernel, tokens):
    """If a library multiplies many tokens, few tokens have the bits that they have one by one."""
    inputs = inputs_of(kernel, tokens=tokens, hidden=HIDDEN, out=OUT)
    together = run(kernel, **inputs)
    for t in range(tokens):
        one = {**inputs, "x": inputs["x"][t : t + 1]}
        assert_array_equal(run(kernel, **one), together[t : t + 1])


def assert_variants_agree(format: str, inputs: dict[str, Any], of: list[AnyKernel]) -> None:
    """CPU variants in the default numerics give the first one's bits. A GPU sums in its own order:
    a row has a chain for each lane of a warp."""
    exact = format, "exact", "cpu"
    variants = [k for k in of if (k.format, k.numerics, k.target) == exact]
    assert len(variants) > 1 or not variants[0].requires
    expected = run(variants[0], **inputs)
    for kernel in variants[1:]:
        assert_array_equal(run(kernel, **inputs), expected, err_msg=kernel.name)


@pytest.mark.parametrize("format", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q2_K"])
@pytest.mark.parametrize("tokens", [1, 3, 8, 33])
@every_variant
def test_variants_agree_bit_for_bit(format, tokens, of):
    """In the default numerics any variant gives the same bits."""
    shape = {"tokens": tokens, "hidden": HIDDEN, "out": OUT}
    assert_variants_agree(
        format, OPS["linear"].make(OPS["linear"].case(shape, "normal", 0, format)), of
    )


@pytest.mark.parametrize("format", sorted({k.format for k in HERE if k.variant[:3] == "lut"}))
@every_variant
def test_the_largest_lookup_table_sums_are_exact(format, of):
    """Activations of one sign and the largest magnitude, and codes with all bits set: table lookups
    of four reach their limits, and so do the bytes that accumulate them."""
    x = np.repeat(np.float32([[1.0], [-1.0]]), HIDDEN, axis=1)
    own = np.arange(HIDDEN) % 32 == np.arange(OUT)[:, None] % 32  # an element of each block
    w = np.concatenate([np.where(own, -1.0, 1.0), np.where(own, 1.0, 0.0)]).astype(np.float32)
    assert_variants_agree(
        format, {"x": x, "weight": FORMATS[format].quantise(w), "format": format}, of
    )


def test_linear_experts_shares_linears_code():
    """linear_experts calls linear's own code: no format is compiled twice."""
    own = [k.share for k in KERNELS if k.op == "linear_experts"]
    assert {share.calls for share in own} <= {k.share for k in KERNELS if k.op == "linear"}
    assert len({share.key for share in own}) == 3  # for floats, for codes, for rows as they are


@each_of([k for k in ONE_ORDER if k.target == "cpu" and HALVES in k.knobs])
def test_dots_beyond_16_bits(kernel):
    """Activations and weights near the maximum, so that a part's dot product exceeds 16 bits, or
    half as large but of one sign, next to tokens whose dots fit: as in tiles of eight tokens."""
    rng = np.random.default_rng(0)
    signs = rng.choice([-1, 1], (96 + OUT, 1)) * np.ones((96 + OUT, HIDDEN), np.float32)
    x, rows = np.float32(signs[:96]), signs[96:]
    x[30:60] = rng.standard_normal((30, HIDDEN))
    x[60:] *= np.where(np.arange(HIDDEN) % 256, 0.5, 1.0)
    rows[:, ::32] *= -1
    weight = FORMATS[kernel.format].quantise(rows)
    inputs = {"x": x, "weight": weight, "format": kernel.format}
    eight = [run(kernel, **{**inputs, "x": x[t : t + 8]}) for t in range(0, 96, 8)]
    assert_array_equal(run(kernel, **inputs), np.concatenate(eight))
