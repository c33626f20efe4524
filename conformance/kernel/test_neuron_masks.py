"""Neurons' masks that are refused."""

import numpy as np
import pytest

from conformance.support.here import each, inputs_of
from kernels.call import call
from kernels.shapes import ShapeError
from reference.neuron_masks import OPS


@each(*(op.name for op in OPS if op.name != "threshold_mask"))
def test_a_mask_of_other_numbers_is_refused(kernel):
    """A mask is 0 and 1: a 2 would be counted twice."""
    inputs = inputs_of(kernel, tokens=3, neurons=31)
    inputs["mask"] = np.full_like(inputs["mask"], 2)
    with pytest.raises(ShapeError, match=rf"\A{kernel.op}: mask holds more than 0 and 1"):
        call(kernel, inputs)
