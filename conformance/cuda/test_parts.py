"""Activations as sums of parts on tensor cores: what truncation may lose, and that no part is
omitted."""

import numpy as np
import pytest

from conformance.cuda.emulator import Emulator, compiler
from kernels.cuda.linear.linear import IN_PARTS, PARTS
from kernels.cuda.runtime.call import bind
from kernels.cuda.runtime.current import taking_the_place
from kernels.cuda.table import CUDA_KERNELS
from reference.attention.attention import FEWEST
from reference.bounds import gamma_truncated
from reference.formats import FORMATS
from reference.linear import HALF, OP
from reference.op import Array

SHAPE = {"tokens": 4, "hidden": 160, "out": 6}


def truncated(x: Array, unit: Array) -> Array:
    return np.trunc(x / unit) * unit


def tensor_core_sum(total: Array, products: Array) -> Array:
    """Add [..., n] products to a sum as tensor cores do: aligned to the largest and truncated
    there, and the result truncated to 24 bits."""
    every = np.append(products, total[..., None], axis=-1)
    largest = np.maximum(np.abs(every).max(axis=-1, keepdims=True), 2.0**-1000)
    lined = truncated(every, 2.0 ** (np.floor(np.log2(largest)) - 23)).sum(axis=-1)
    return truncated(lined, 2.0 ** (np.floor(np.log2(np.maximum(np.abs(lined), 2.0**-1000))) - 23))


def split_in_parts(x: Array, format: str) -> tuple[list[Array], Array]:
    """Split [tokens, elements] of a half into parts, the highest first, and powers of two."""
    power = np.ones((len(x), 1))
    if format == "F16":
        largest = np.maximum(np.abs(x).max(axis=1, keepdims=True), 2.0**-112)
        power = 2.0 ** (np.floor(np.log2(largest)) - 14)
    rest, layout, found = x / power, FORMATS[format], []
    for _ in range(PARTS[format]):
        found.append(layout.dequantise(layout.quantise(rest.astype(np.float32))).astype(np.float64))
        rest = rest - found[-1]
    return found, power


def product_in_parts(x: Array, w: Array, format: str, together: int) -> Array:
    """The product by instructions that add this many products at once."""
    out = np.zeros((len(x), len(w)))
    for begin in range(0, x.shape[1], HALF):
        parts, power = split_in_parts(x[:, begin : begin + HALF], format)
        total = np.zeros_like(out)
        for step in range(0, HALF, 16):
            for part in reversed(parts):
                for at in range(step, step + 16, together):
                    some = w[:, begin + at : begin + at + together]
                    total = tensor_core_sum(total, part[:, None, at : at + together] * some)
        out = (out + power * total).astype(np.float32).astype(np.float64)
    return out


@pytest.mark.parametrize("format", PARTS)
@pytest.mark.parametrize("values", ["normal", "cancelling", "huge"])
def test_truncation_stays_within_the_bound(format, values):
    """With eight and sixteen products at a time truncation stays within the bound; activations of a
    single float16 exceed it."""
    inputs = OP.make(OP.case(SHAPE, values, 3, format))
    expected = OP.expected(inputs)
    bound = OP.bounds[IN_PARTS[format]](inputs, expected)["out"]
    w = FORMATS[format].dequantise(inputs["weight"]).astype(np.float64)
    x = inputs["x"].astype(np.float64)
    for together in (8, 16):
        assert (np.abs(product_in_parts(x, w, format, together) - expected["out"]) <= bound).all()
    if values == "normal":
        rounded = x.astype(np.float16).astype(np.float64)
        assert (np.abs(product_in_parts(rounded, w, format, 16) - expected["out"]) > bound).any()


@pytest.mark.parametrize("together", [4, 8, 16])
def test_truncation_in_attention_stays_within_its_bound(together):
    """All addends but the first lie just below where they are cut off, and are lost whole; a unit
    less for each would not do."""
    products = np.full(256, 2.0**-23 * (1 - 2.0**-20))
    products[0], total = 1.0, np.zeros(())
    for at in range(0, len(products), together):
        total = tensor_core_sum(total, products[at : at + together])
    growth = (products.sum() - total) / products.sum()
    assert (
        gamma_truncated(len(products), FEWEST) / 2
        < growth
        <= gamma_truncated(len(products), FEWEST)
    )


@pytest.mark.skipif(not compiler(), reason="no C++ compiler")
@pytest.mark.parametrize("tokens", [3, 20])
@pytest.mark.parametrize(("format", "lost"), [("BF16", 0.0), ("F16", 2.0**-22)])
def test_no_part_is_lost(format, lost, tokens):
    """Weights that reproduce the activations show that every part is multiplied."""
    wanted = "linear", "tensor", format
    kernel = next(k for k in CUDA_KERNELS if (k.op, k.variant, k.format) == wanted)
    x = np.random.default_rng(5).standard_normal((tokens, 72), np.float32)
    weight = FORMATS[format].quantise(np.eye(72, dtype=np.float32))
    out = np.full((tokens, 72), np.nan, np.float32)
    with taking_the_place(Emulator()):
        bind(kernel, {"x": x, "weight": weight, "format": format}, {"out": out})()
    np.testing.assert_allclose(out, x, rtol=lost, atol=lost * 2.0**-17 * np.abs(x).max())


@pytest.mark.skipif(not compiler(), reason="no C++ compiler")
@pytest.mark.parametrize("tokens", [3, 20])
@pytest.mark.parametrize("format", PARTS)
def test_an_infinite_weight_gives_infinities(format, tokens):
    """Its products with an activation's parts, of either sign, would add up to NaN."""
    wanted = "linear", "tensor", format
    kernel = next(k for k in CUDA_KERNELS if (k.op, k.variant, k.format) == wanted)
    x = np.random.default_rng(6).standard_normal((tokens, 72), np.float32)
    w = np.ones((6, 72), np.float32)
    w[2, 5], w[4, 70] = np.inf, -np.inf
    weight = FORMATS[format].quantise(w)
    out = np.full((tokens, 6), np.nan, np.float32)
    with taking_the_place(Emulator()):
        bind(kernel, {"x": x, "weight": weight, "format": format}, {"out": out})()
    np.testing.assert_array_equal(out[:, 2], np.inf * np.sign(x[:, 5]))
    np.testing.assert_array_equal(out[:, 4], -np.inf * np.sign(x[:, 70]))
    assert np.isfinite(out[:, [0, 1, 3, 5]]).all()
