"""Planted bugs of arithmetic."""

import numpy as np

from conformance.bugs.bug import changed, in_python
from reference import arithmetic
from reference.op import Array


def of_the_next(values: Array) -> Array:
    return np.roll(values, 1)


BUGS = (
    *in_python(
        "add",
        add_in_float16=lambda x, y: x.astype(np.float16) + y.astype(np.float16),
        element_beyond_65535=lambda x, y: (
            x + np.take(y, np.arange(y.size) & 65535).reshape(y.shape)
        ),
    ),
    *in_python("add_bias", bias_of_the_next=changed(arithmetic.add_bias, bias=of_the_next)),
    *in_python(
        "mul",
        mul_in_float16=lambda x, y: x.astype(np.float16) * y.astype(np.float16),
        one_in_float16=lambda x, y: x * y.astype(np.float16),
    ),
    *in_python(
        "mul_columns", factor_of_the_next=changed(arithmetic.mul_columns, factors=of_the_next)
    ),
    *in_python("scale", scale_in_float16=lambda x, factor: x * np.float16(factor)),
    *in_python(
        "softcap",
        cap_by_a_corner=lambda x, cap: np.clip(x, -cap, cap),
        no_cap=lambda x, cap: x,
        cap_of_sizes=changed(arithmetic.softcap, x=np.abs),
        cap_not_given_back=lambda x, cap: np.tanh(x / np.float32(cap)),
    ),
)
