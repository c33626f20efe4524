"""Laws of integer and FP8 quantisation in groups."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.testing import assert_array_equal

from conformance.support.machine_kernels import each
from kernels.call import call
from kernels.shapes import ShapeError
from kernels.table import find
from reference.schemes.float8 import E4M3, E5M2
from reference.values import FINITE as KINDS
from reference.values import VALUES

QUANTISERS = ("quantise_symmetric", "quantise_asymmetric", "quantise_e4m3", "quantise_e5m2")
INTEGERS = QUANTISERS[:2]
FLOATS = {"e4m3": (E4M3, ml_dtypes.float8_e4m3fn), "e5m2": (E5M2, ml_dtypes.float8_e5m2)}
BITS = st.integers(2, 8)
FINITE = st.floats(-(2.0**100), 2.0**100, width=32)
every_float = pytest.mark.parametrize("kind", FLOATS)


def quantised(op: str, x: np.ndarray, bits: int = 8) -> dict[str, np.ndarray]:
    inputs = {"x": x} | ({"bits": bits} if op in INTEGERS else {})
    return call(find(f"{op}/cpu/generic"), inputs)


def restored(op: str, found: dict[str, np.ndarray]) -> np.ndarray:
    return call(find(f"de{op}/cpu/generic"), found)["out"]


@st.composite
def groups(draw: st.DrawFn) -> np.ndarray:
    """float32 [groups, size]: Hypothesis's awkward values, and typical ones."""
    shape = draw(st.tuples(st.integers(1, 4), st.integers(1, 40)))
    made = arrays.arrays(np.float32, shape, elements=FINITE)
    kind, seed = st.sampled_from([VALUES[kind] for kind in KINDS]), st.integers(0, 99)
    usual = st.builds(lambda make, n: make(np.random.default_rng(n), shape), kind, seed)
    return draw(made | usual)


@pytest.mark.parametrize("op", INTEGERS)
@given(groups(), st.integers(2, 7))
def test_one_more_bit_halves_the_step(op, x, bits):
    """One more bit at least halves the error bound, for any values."""
    wide, fine = (quantised(op, x, b)["scale"].astype(np.float64) for b in (bits, bits + 1))
    assert (fine <= wide / 2 * (1 + 2.0**-21)).all()


@pytest.mark.parametrize("op", QUANTISERS)
@given(groups(), BITS)
def test_group_steps_are_no_larger_than_tensor_steps(op, x, bits):
    """No group's step is larger than the tensor's, nor than its token's."""
    by_tensor, by_token = quantised(op, x.reshape(1, -1), bits), quantised(op, x, bits)
    by_element = quantised(op, x.reshape(-1, 1), bits)
    assert (by_token["scale"] <= by_tensor["scale"]).all()
    finest = by_element["scale"].reshape(x.shape)
    assert (finest <= by_token["scale"][:, None]).all()


@given(st.data(), BITS, st.integers(-20, 20))
def test_symmetric_is_asymmetric_with_zero_point_zero(data, bits, exponent):
    """If the asymmetric zero point is 0, both schemes have the same scale and q."""
    top, step = 2 ** (bits - 1) - 1, np.float32(2.0**exponent)
    inner = st.floats(-top, top, width=32)
    x = data.draw(arrays.arrays(np.float32, st.integers(2, 40), elements=inner))[None] * step
    x[0, 0], x[0, 1] = top * step, -top * step
    lowered = x.copy()
    lowered[0, 1] = -(top + 1) * step
    q, scale = quantised("quantise_symmetric", x, bits).values()
    other_q, other_scale, zero = quantised("quantise_asymmetric", lowered, bits).values()
    assert zero[0] == 0
    assert scale[0] == other_scale[0] == step
    assert_array_equal(np.delete(q, 1), np.delete(other_q, 1))
    plain = restored("quantise_symmetric", {"q": q, "scale": scale})
    assert_array_equal(
        restored("quantise_asymmetric", {"q": q, "scale": scale, "zero": zero}), plain
    )


@pytest.mark.parametrize("op", ["quantise_symmetric", "quantise_e4m3", "quantise_e5m2"])
@given(groups(), BITS)
def test_requantising_is_idempotent(op, x, bits):
    """Dequantised values are quantised to the same codes."""
    found = quantised(op, x, bits)
    again = quantised(op, restored(op, found), bits)
    kept = again["scale"] > 0  # a scale just above the smallest may round below it
    assert_array_equal(found["q"][kept], again["q"][kept])


@every_float
def test_fp8_casts_equal_ml_dtypes(kind):
    """The reference's for every float16, every bfloat16 and random float32s, NaN and overflow
    included; the kernel's, at scale 1, up to the largest number; and all 256 codes of both."""
    float8, other = FLOATS[kind]
    halves = np.arange(2**16, dtype=np.uint16)
    drawn = np.random.default_rng(0).integers(0, 2**32, 2**18, dtype=np.uint32)
    for x in (halves.view(np.float16), halves.view(ml_dtypes.bfloat16), drawn.view(np.float32)):
        with np.errstate(invalid="ignore"):  # signalling NaNs
            floats = x.astype(np.float32)
            assert_array_equal(float8.encode(floats), floats.astype(other).view(np.uint8))
        row = np.append(np.float32(float8.largest), floats[np.abs(floats) <= float8.largest])
        q, scale = quantised(f"quantise_{kind}", row[None]).values()
        assert scale[0] == 1
        assert_array_equal(q[0], row.astype(other).view(np.uint8))
    codes = np.arange(256, dtype=np.uint8)
    numbers = codes.view(other).astype(np.float32)
    assert_array_equal(float8.decode(codes), numbers)
    out = restored(f"quantise_{kind}", {"q": codes[None], "scale": np.ones(1, np.float32)})
    assert_array_equal(out[0], numbers)


@each(*INTEGERS)
@pytest.mark.parametrize("bits", [1, 9])
def test_unsupported_bit_widths_are_refused(kernel, bits):
    with pytest.raises(ShapeError, match=f"bits is {bits}, not 2 to 8"):
        call(kernel, {"x": np.ones((1, 4), np.float32), "bits": bits})


def test_zero_points_are_int8():
    """Others are refused: no scheme has such integers."""
    q, ones = np.zeros((1, 4), np.int8), np.ones(1, np.float32)
    with pytest.raises(ShapeError, match="zero holds 128, not in -128 to 127"):
        restored("quantise_asymmetric", {"q": q, "scale": ones, "zero": np.array([128], np.int32)})
