"""Linear layers on int8 and FP8: variants agree, refusals, exact products."""

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from conformance.support.machine_kernels import HERE, each, inputs_of, run
from kernels.shapes import ShapeError
from kernels.table import find

W8A8 = [k for k in HERE if k.op == "linear_w8a8"]
PACKED = [k for k in W8A8 if k.variant != "scalar"]
FLOATS = {"linear_e4m3": ml_dtypes.float8_e4m3fn, "linear_e5m2": ml_dtypes.float8_e5m2}


@each("linear_w8a8")
def test_groups_that_overflow_int32_are_refused(kernel):
    with pytest.raises(ShapeError, match=rf"{kernel.name} does not take .*'size': 33056"):
        run(kernel, **inputs_of(kernel, tokens=1, groups=1, size=33056, out=1))


@each("linear_w8a8")
def test_zero_points_are_int8(kernel):
    for name in ("x_zero", "weight_zero"):
        inputs = inputs_of(kernel, tokens=2, groups=2, size=32, out=3)
        inputs[name][1, 1] = -129
        with pytest.raises(ShapeError, match=f"{name} holds -129, not in -128 to 127"):
            run(kernel, **inputs)


@pytest.mark.parametrize("tokens", [1, 2, 12, 17])
@pytest.mark.parametrize(("groups", "size"), [(1, 320), (5, 64), (3, 2080)])
def test_variants_agree_bit_for_bit(tokens, groups, size):
    """Any instructions give the same sums, added in the same order."""
    shape = {"tokens": tokens, "groups": groups, "size": size, "out": 33}
    inputs = inputs_of(W8A8[0], **shape, values="spiky")
    expected = run(find("linear_w8a8/cpu/generic"), **inputs)
    for kernel in PACKED:
        assert_array_equal(run(kernel, **inputs), expected)


@each(*FLOATS)
def test_products_that_fit_float32_are_exact(kernel):
    """Small integers and scales of powers of two give exact products of any number of tokens."""
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
