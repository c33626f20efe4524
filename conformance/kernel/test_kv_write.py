"""Laws of writing into the KV cache."""

import numpy as np
from numpy.testing import assert_array_equal

from conformance.kernel.here import each, inputs_of, run
from reference.formats import FORMATS


@each("kv_write")
def test_other_cells_keep_every_bit(kernel):
    """Only the named cells change."""
    inputs = inputs_of(kernel, tokens=7, capacity=40, width=33)
    others = np.setdiff1d(np.arange(40), inputs["cells"])
    assert_array_equal(run(kernel, **inputs)[others], inputs["before"][others])


@each("kv_write", formats=("F32", "F16"))
def test_what_was_written_is_read(kernel):
    """A cell holds its token as the format rounds it, by NumPy's own cast."""
    inputs = inputs_of(kernel, tokens=7, capacity=40, width=33, values="spiky")
    read = FORMATS[kernel.format].dequantise(run(kernel, **inputs)[inputs["cells"]])
    kind = {"F32": np.float32, "F16": np.float16}[kernel.format]
    assert_array_equal(read, inputs["x"].astype(kind).astype(np.float32))


@each("kv_write", formats=("Q8_0", "Q4_0"))
def test_what_was_written_is_read_to_a_step(kernel):
    """A quantised cell holds its token to a part of each block's largest, which sets the step."""
    inputs = inputs_of(kernel, tokens=7, capacity=40, width=64, values="spiky")
    read = FORMATS[kernel.format].dequantise(run(kernel, **inputs)[inputs["cells"]])
    largest = np.abs(inputs["x"].reshape(7, 2, 32)).max(axis=2, keepdims=True)
    part = {"Q8_0": 0.5 / 127, "Q4_0": 1 / 8}[kernel.format] + 2.0**-11  # of float16, the scale's
    assert (np.abs(read - inputs["x"]).reshape(7, 2, 32) <= 1.001 * part * largest).all()


@each("kv_write")
def test_the_order_of_tokens_does_not_matter(kernel):
    """Tokens listed in another order, each with its cell, give the same cache."""
    inputs = inputs_of(kernel, tokens=7, capacity=40, width=33)
    backwards = {name: np.ascontiguousarray(inputs[name][::-1]) for name in ("x", "cells")}
    assert_array_equal(run(kernel, **{**inputs, **backwards}), run(kernel, **inputs))


@each("kv_write")
def test_writing_twice_is_writing_once(kernel):
    """The same write into its own result changes nothing."""
    inputs = inputs_of(kernel, tokens=7, capacity=40, width=33)
    once = run(kernel, **inputs)
    assert_array_equal(run(kernel, **{**inputs, "before": once}), once)
