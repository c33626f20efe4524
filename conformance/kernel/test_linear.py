"""Laws of the linear layer, for every variant and weight format."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from conformance.kernel.here import HERE, each, inputs_of, run
from kernels.call import AnyKernel
from kernels.cpu import linear_lut
from reference.formats import FORMATS
from reference.table import OPS

HIDDEN, OUT = 256, 65
APART = [k for k in HERE if (k.op, k.target, k.numerics) == ("linear", "cuda", "fast")]
ONE_ORDER = [k for k in HERE if k.op == "linear" and k not in APART]
CUTTING = [k for k in ONE_ORDER if k.variant != "scalar"]  # scalar cuts nothing


def each_of(kernels: list[AnyKernel]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kernel", kernels, ids=[kernel.name for kernel in kernels])


def whole(
    kernel: AnyKernel, rng: np.random.Generator, tokens: int
) -> tuple[np.ndarray, np.ndarray]:
    """Integer activations and weights that no format and no quantisation changes."""
    x = rng.integers(-126, 127, (tokens, HIDDEN)).astype(np.float32)
    x[:, ::32] = 127  # the largest of each block, so that the scale of int8 activations is 1
    w = rng.integers(-7, 8, (OUT, HIDDEN)).astype(np.float32)
    w[:, 1::32] = 127 if kernel.format == "Q8_0" else -8  # so that a block's scale is 1
    return x, w


@each("linear", formats=("F32", "F16", "BF16", "Q8_0", "Q4_0"))
@pytest.mark.parametrize("tokens", [1, 5])
def test_integers_are_exact(kernel, tokens):
    """Sums that float32 can hold come out exactly, whatever the order of summation."""
    x, w = whole(kernel, np.random.default_rng(0), tokens)
    weight = FORMATS[kernel.format].quantise(w)
    assert_array_equal(FORMATS[kernel.format].dequantise(weight), w)
    assert_array_equal(run(kernel, x=x, weight=weight), x @ w.T.astype(np.float64))


@each("linear", formats=("F32", "F16", "BF16"))
def test_linear_is_linear(kernel):
    """The product of a sum is the sum of the products, exactly where integers allow."""
    rng = np.random.default_rng(1)
    (x, w), (y, _) = whole(kernel, rng, 4), whole(kernel, rng, 4)
    weight = FORMATS[kernel.format].quantise(w)
    apart = run(kernel, x=x, weight=weight) + run(kernel, x=y, weight=weight)
    assert_array_equal(run(kernel, x=x + y, weight=weight), apart)


@each("linear")
@pytest.mark.parametrize("factor", [-1.0, 2.0**10, 2.0**-10])
def test_scaling_by_a_power_of_two_is_exact(kernel, factor):
    """A factor that rounds nothing passes through, bit for bit."""
    inputs = inputs_of(kernel, tokens=5, hidden=HIDDEN, out=OUT)
    scaled = {**inputs, "x": inputs["x"] * np.float32(factor)}
    assert_array_equal(run(kernel, **scaled), run(kernel, **inputs) * np.float32(factor))


@each_of(ONE_ORDER)
@pytest.mark.parametrize("tokens", [2, 3, 4, 5, 8, 33])
def test_a_batch_is_its_tokens_one_by_one(kernel, tokens):
    """However many tokens come together, each gets the same bits."""
    inputs = inputs_of(kernel, tokens=tokens, hidden=HIDDEN, out=OUT)
    together = run(kernel, **inputs)
    for t in range(tokens):
        assert_array_equal(
            run(kernel, **{**inputs, "x": inputs["x"][t : t + 1]}), together[t : t + 1]
        )


@each_of(APART)
@pytest.mark.parametrize("tokens", [2, 4, 8])
def test_few_tokens_are_of_one_order(kernel, tokens):
    """Where a library multiplies many, at least few are what they are one by one."""
    inputs = inputs_of(kernel, tokens=tokens, hidden=HIDDEN, out=OUT)
    together = run(kernel, **inputs)
    for t in range(tokens):
        one = {**inputs, "x": inputs["x"][t : t + 1]}
        assert_array_equal(run(kernel, **one), together[t : t + 1])


@each("linear")
@pytest.mark.parametrize("rows", [1, 31, 32, 33, 64])
def test_a_row_does_not_see_the_others(kernel, rows):
    """Cutting the weight leaves the outputs that remain as they were, bit for bit."""
    inputs = inputs_of(kernel, tokens=5, hidden=HIDDEN, out=OUT)
    fewer = {**inputs, "weight": np.ascontiguousarray(inputs["weight"][:rows])}
    assert_array_equal(run(kernel, **fewer), run(kernel, **inputs)[:, :rows])


@each("linear")
def test_zero_weights_and_zero_activations_give_zero(kernel):
    """Nothing times anything is nothing."""
    inputs = inputs_of(kernel, tokens=5, hidden=HIDDEN, out=OUT)
    no_weight = inputs_of(kernel, values="zeros", tokens=5, hidden=HIDDEN, out=OUT)["weight"]
    assert_array_equal(run(kernel, **{**inputs, "weight": no_weight}), 0)
    assert_array_equal(run(kernel, **{**inputs, "x": np.zeros_like(inputs["x"])}), 0)


@each("linear")
def test_each_weight_meets_its_own_activation(kernel):
    """A unit activation picks its column of the weights, at every index."""
    weight = inputs_of(kernel, tokens=1, hidden=HIDDEN, out=OUT)["weight"]
    x = np.float32(127) * np.eye(HIDDEN, dtype=np.float32)
    columns = FORMATS[kernel.format].dequantise(weight).T
    if kernel.activations == "bf16":
        columns = FORMATS["BF16"].dequantise(FORMATS["BF16"].quantise(columns))
    out = run(kernel, x=x, weight=weight)
    # an offset and what it is added to may cancel, which are rounded apart
    cancelled = 2.0**-22 * np.abs(columns).max() if FORMATS[kernel.format].offset else 0
    np.testing.assert_allclose(out, 127 * columns, rtol=1e-6, atol=127 * cancelled)


@each_of(CUTTING)
@pytest.mark.parametrize("tokens", [47, 48, 49, 64, 65, 113])
def test_where_a_kernel_cuts_changes_no_bit(kernel, tokens):
    """More tokens than fit a panel, and a hidden longer than one, are what single tokens are."""
    inputs = inputs_of(kernel, tokens=tokens, hidden=2144, out=33)
    together = run(kernel, **inputs)
    for t in (0, tokens // 2, tokens - 1):
        one = {**inputs, "x": inputs["x"][t : t + 1]}
        assert_array_equal(run(kernel, **one), together[t : t + 1])


def agree(format: str, inputs: dict[str, Any]) -> None:
    """Every variant for CPUs in the default numerics gives the first one's bits. A GPU adds in an
    order of its own: a row has a chain for each lane of a warp."""
    exact = format, "exact", "cpu"
    variants = [k for k in CUTTING if (k.format, k.numerics, k.target) == exact]
    assert len(variants) > 1 or not variants[0].requires
    expected = run(variants[0], **inputs)
    for kernel in variants[1:]:
        assert_array_equal(run(kernel, **inputs), expected, err_msg=kernel.name)


@pytest.mark.parametrize(
    "format", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q2_K", "Q3_K", "TQ1_0", "TQ2_0"]
)
@pytest.mark.parametrize("tokens", [1, 3, 8, 33])
def test_variants_agree_bit_for_bit(format, tokens):
    """In the default numerics it does not matter which variant serves."""
    shape = {"tokens": tokens, "hidden": HIDDEN, "out": OUT}
    agree(format, OPS["linear"].make(OPS["linear"].case(shape, "normal", 0, format)))


@pytest.mark.parametrize("format", linear_lut.FORMATS_OF_AVX512)
def test_the_largest_looked_up_sums_are_exact(format):
    """Activations of one sign and the largest magnitude, and codes with every bit set: sums of four
    reach their ends, and so do the bytes in which they are added up."""
    x = np.repeat(np.float32([[1.0], [-1.0]]), HIDDEN, axis=1)
    own = np.arange(HIDDEN) % 32 == np.arange(OUT)[:, None] % 32  # an element of each block
    w = np.concatenate([np.where(own, -1.0, 1.0), np.where(own, 1.0, 0.0)]).astype(np.float32)
    agree(format, {"x": x, "weight": FORMATS[format].quantise(w), "format": format})
