"""Planted bugs of arithmetic."""

import numpy as np

from conformance.bugs.bug import in_python
from reference import arithmetic

BUGS = (
    *in_python(
        "add",
        add_in_float16=lambda x, y: x.astype(np.float16) + y.astype(np.float16),
        element_beyond_65535=lambda x, y: (
            x + np.take(y, np.arange(y.size) & 65535).reshape(y.shape)
        ),
    ),
    *in_python(
        "add_bias", bias_of_the_next=lambda x, bias: arithmetic.add_bias(x, np.roll(bias, 1))
    ),
    *in_python(
        "mul",
        mul_in_float16=lambda x, y: x.astype(np.float16) * y.astype(np.float16),
        one_in_float16=lambda x, y: x * y.astype(np.float16),
    ),
    *in_python(
        "mul_columns",
        factor_of_the_next=lambda x, factors: arithmetic.mul_columns(x, np.roll(factors, 1)),
    ),
    *in_python("scale", scale_in_float16=lambda x, factor: x * np.float16(factor)),
    *in_python(
        "softcap",
        cap_by_a_corner=lambda x, cap: np.clip(x, -cap, cap),
        no_cap=lambda x, cap: x,
        cap_of_sizes=lambda x, cap: arithmetic.softcap(np.abs(x), cap),
        cap_not_given_back=lambda x, cap: np.tanh(x / np.float32(cap)),
    ),
)
