"""Rounding rarely decides; properties of each sampler are in reference/laws/samplers.py."""

import numpy as np
import pytest

from reference.table import OPS


@pytest.mark.parametrize("op", ["top_p", "typical", "xtc", "mirostat_v2", "draw"])
def test_rounding_rarely_decides(op):
    """In the op's cases, less than one in a hundred decisions could change by rounding."""
    doubtful = decisions = 0
    for case in OPS[op].quick_cases():
        inputs = OPS[op].make(case)
        expected = OPS[op].expected(inputs)
        with np.errstate(invalid="ignore"):
            also = OPS[op].also(inputs, expected)
        for name, choices in also.items():
            doubtful += int((choices != expected[name]).sum())
        decisions += case.shape["vocab"]
    assert doubtful < decisions / 100
