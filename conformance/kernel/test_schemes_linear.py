"""Laws of the linear layers on int8 and on floats of eight bits."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from conformance.kernel.here import HERE, each, inputs_of, run
from kernels.cpu.schemes.linear_w8a8 import LARGEST
from kernels.shapes import ShapeError
from kernels.table import find
from reference.schemes.integers import quantise_asymmetric

W8A8 = [k for k in HERE if k.op == "linear_w8a8"]
PACKED = [k for k in W8A8 if k.variant != "scalar"]
FLOATS = {"linear_e4m3": ml_dtypes.float8_e4m3fn, "linear_e5m2": ml_dtypes.float8_e5m2}

packed = pytest.mark.parametrize("kernel", PACKED, ids=[k.name for k in PACKED])


def whole(tokens: int, groups: int, size: int, out: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Integers of every kind, the extremes among them, and scales of 1."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, rows, scales in (("x", tokens, (tokens, groups)), ("weight", out, (groups, out))):
        q = rng.integers(-128, 128, (rows, groups * size))
        found[name] = np.where(rng.random(q.shape) < 0.2, -128, q).astype(np.int8)
        found[f"{name}_scale"] = np.ones(scales, np.float32)
        found[f"{name}_zero"] = rng.integers(-128, 128, scales).astype(np.int32)
    return found


def product(inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Of whole numbers and scales of 1, one group."""
    x = inputs["x"].astype(np.int64) - inputs["x_zero"]
    return x @ (inputs["weight"].astype(np.int64) - inputs["weight_zero"].T).T


@each("linear_w8a8")
@pytest.mark.parametrize("tokens", [1, 5, 13])
def test_whole_numbers_are_exact(kernel, tokens):
    """A group's sum is exact, then rounded once; so is what 32 bits hardly hold."""
    inputs = whole(tokens, 1, 96, 33)
    assert_array_equal(run(kernel, **inputs), product(inputs).astype(np.float32))
    for q, zero in ((127, -128), (-128, 127)):
        inputs = whole(tokens, 1, LARGEST // 32 * 32, 17)
        for name in ("x", "weight"):
            inputs[name][:], inputs[f"{name}_zero"][:] = q, zero
        assert_array_equal(run(kernel, **inputs), product(inputs).astype(np.float32))


@each("linear_w8a8")
def test_a_group_that_32_bits_do_not_hold_is_refused(kernel):
    with pytest.raises(ShapeError, match=rf"{kernel.name} does not take .*'size': 33056"):
        run(kernel, **whole(1, 1, 33056, 1))


@each("linear_w8a8")
def test_zero_points_are_int8(kernel):
    for name in ("x_zero", "weight_zero"):
        inputs = whole(2, 2, 32, 3)
        inputs[name][1, 1] = -129
        with pytest.raises(ShapeError, match=f"{name} holds -129, not in -128 to 127"):
            run(kernel, **inputs)


@pytest.mark.parametrize("tokens", [1, 2, 12, 17])
@pytest.mark.parametrize(("groups", "size"), [(1, 320), (5, 64), (3, 2080)])
def test_variants_agree_bit_for_bit(tokens, groups, size):
    """In whichever instructions the sums are, they are the same, and added in the same order."""
    shape = {"tokens": tokens, "groups": groups, "size": size, "out": 33}
    inputs = inputs_of(W8A8[0], **shape, values="spiky")
    expected = run(find("linear_w8a8/cpu/generic"), **inputs)
    for kernel in PACKED:
        assert_array_equal(run(kernel, **inputs), expected)


@packed
@pytest.mark.parametrize("tokens", [47, 49, 65])
@pytest.mark.parametrize(("groups", "size"), [(1, 4128), (2, 2112), (33, 128)])
def test_where_a_kernel_cuts_changes_no_bit(kernel, tokens, groups, size):
    """Groups that end within a panel and beyond it are what single tokens make of them."""
    shape = {"tokens": tokens, "groups": groups, "size": size, "out": 33}
    inputs = inputs_of(kernel, **shape)
    together = run(kernel, **inputs)
    for t in (0, tokens // 2, tokens - 1):
        one = {name: v[t : t + 1] if name[0] == "x" else v for name, v in inputs.items()}
        assert_array_equal(run(kernel, **one), together[t : t + 1])


@each("linear_w8a8")
@given(st.integers(-60, 60), st.integers(-60, 60), st.integers(0, 99))
def test_only_the_distance_from_the_zero_point_counts(kernel, x_shift, weight_shift, seed):
    """Moving integers and zero points together changes no bit; zero points of 0 are the symmetric
    scheme."""
    rng, inputs = np.random.default_rng(seed), whole(3, 2, 32, 17)
    for name in ("x", "weight"):
        inputs[name] = rng.integers(-64, 64, inputs[name].shape).astype(np.int8)
        inputs[f"{name}_zero"][:] = 0
        inputs[f"{name}_scale"] = rng.random(inputs[f"{name}_scale"].shape, np.float32)
    moved = dict(inputs)
    for name, shift in (("x", x_shift), ("weight", weight_shift)):
        moved[name] = (inputs[name] + shift).astype(np.int8)
        moved[f"{name}_zero"] = inputs[f"{name}_zero"] + np.int32(shift)
    assert_array_equal(run(kernel, **moved), run(kernel, **inputs))


@each("linear_w8a8")
@pytest.mark.parametrize("values", ["normal", "spiky"])
def test_the_float_product_is_within_half_steps(kernel, values):
    """Of the product that was quantised, by token and channel: half a step of each side times the
    other, and half times half."""
    shape = {"tokens": 5, "groups": 1, "size": 256, "out": 33}
    case = kernel.spec.case(shape, values, 1)
    rng = case.rng()
    x, w = case.array(rng, 5, 256), case.array(rng, 33, 256)
    (q, x_scale, x_zero), (p, w_scale, w_zero) = (
        quantise_asymmetric(x, 8),
        quantise_asymmetric(w, 8),
    )
    out = run(
        kernel,
        x=q, x_scale=x_scale[:, None], x_zero=x_zero[:, None],
        weight=p, weight_scale=w_scale[None], weight_zero=w_zero[None],
    )  # fmt: skip
    half_x, half_w = x_scale[:, None] * 0.5001, w_scale[:, None] * 0.5001
    most = (np.abs(x) + half_x) @ (np.abs(w) + half_w).T - np.abs(x) @ np.abs(w).T
    exact = x.astype(np.float64) @ w.astype(np.float64).T
    assert (np.abs(out - exact) <= most + 1e-5 * np.abs(x) @ np.abs(w).T).all()


@each(*FLOATS)
def test_every_code_is_its_number(kernel):
    """A unit activation picks its column of the weights, whichever codes they are."""
    other = FLOATS[kernel.op]
    codes = np.arange(256, dtype=np.uint8)
    numbers = codes.view(other).astype(np.float32)
    one = int(np.float32(1).astype(other).view(np.uint8))
    x = np.full((1, 1), one, np.uint8)
    ones = np.ones(256, np.float32)
    out = run(kernel, x=x, x_scale=ones[:1], weight=codes[:, None], weight_scale=ones)
    assert_array_equal(out[0], numbers)
    finite = np.isfinite(numbers)
    x = codes[finite][:, None]
    weight = np.full((1, 1), one, np.uint8)
    out = run(kernel, x=x, x_scale=ones[finite], weight=weight, weight_scale=ones[:1])
    assert_array_equal(out[:, 0], numbers[finite])


@each(*FLOATS)
def test_a_product_that_float32_holds_is_exact(kernel):
    """Of small whole numbers, with scales that are powers of two, whatever the tokens."""
    other, rng = FLOATS[kernel.op], np.random.default_rng(0)
    for tokens in (1, 7, 50):
        x, w = rng.integers(-4, 5, (tokens, 1100)), rng.integers(-4, 5, (33, 1100))
        scales = [2.0 ** rng.integers(-9, 9, n).astype(np.float32) for n in (tokens, 33)]
        inputs = {
            "x": x.astype(np.float32).astype(other).view(np.uint8),
            "x_scale": scales[0],
            "weight": w.astype(np.float32).astype(other).view(np.uint8),
            "weight_scale": scales[1],
        }
        assert_array_equal(run(kernel, **inputs), (x @ w.T) * np.outer(*scales))


@each(*FLOATS)
@pytest.mark.parametrize("tokens", [47, 65])
def test_tokens_together_are_tokens_alone(kernel, tokens):
    """More than a panel holds, and a hidden that is cut: no bit changes."""
    inputs = inputs_of(kernel, tokens=tokens, hidden=2100, out=33)
    together = run(kernel, **inputs)
    for t in (0, tokens - 1):
        one = {name: v[t : t + 1] if name[0] == "x" else v for name, v in inputs.items()}
        assert_array_equal(run(kernel, **one), together[t : t + 1])
