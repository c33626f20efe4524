"""What a NaN may reach: the op's row says so, and every kernel keeps to it."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from conformance.kernel.here import HERE, inputs_of, run
from kernels.kernel import Kernel
from reference.table import OPS

SHAPE = {
    "tokens": 5, "hidden": 256, "width": 127, "out": 65, "head_dim": 64, "pairs": 16,
    "groups": 3, "size": 64,
}  # fmt: skip


def kernels_with(policy: str) -> pytest.MarkDecorator:
    """Those whose outputs are numbers; what kv_write makes of a NaN its laws say."""
    chosen = [k for k in HERE if OPS[k.op].nan == policy and OPS[k.op].outputs[0].dtype != "format"]
    return pytest.mark.parametrize("kernel", chosen, ids=[k.name for k in chosen])


def poisoned(kernel: Kernel, at: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Output without a NaN and with one in the first floats, the reference's with one, and the
    poisoned token."""
    op = OPS[kernel.op]
    inputs = inputs_of(kernel, **{axis: SHAPE[axis] for axis in op.axes if axis in SHAPE})
    first = next(argument.name for argument in op.inputs if argument.dtype == "f32")
    clean = run(kernel, **inputs)
    x = inputs[first].copy()
    flat = int(at * (x.size - 1))
    x.reshape(-1)[flat] = np.nan
    spoilt = {**inputs, first: x}
    (expected,) = op.expected(spoilt).values()
    return clean, run(kernel, **spoilt), expected, flat // (x.size // len(x))


@pytest.mark.parametrize("at", [0.0, 0.3, 0.5, 1.0])
@kernels_with("element")
def test_an_element_keeps_its_nan_to_itself(kernel, at):
    """One NaN element makes one NaN result and changes no other bit."""
    clean, spoilt, expected, _ = poisoned(kernel, at)
    assert_array_equal(np.isnan(spoilt), np.isnan(expected))
    assert np.isnan(spoilt).sum() == 1
    assert_array_equal(spoilt[~np.isnan(spoilt)], clean[~np.isnan(spoilt)])


@pytest.mark.parametrize("at", [0.0, 0.3, 0.5, 1.0])
@kernels_with("token")
def test_a_token_keeps_its_nan_to_itself(kernel, at):
    """A NaN shows in its token wherever the reference has it, and changes no bit of another."""
    clean, spoilt, expected, token = poisoned(kernel, at)
    assert np.isnan(spoilt[token]).any()
    assert np.isnan(spoilt[np.isnan(expected)]).all()
    others = np.arange(len(clean)) != token
    assert_array_equal(spoilt[others], clean[others])
