"""Planted bugs of linear_float8."""

import numpy as np

from conformance.bugs.bug import in_python
from reference.schemes.linear_float8 import linear_e4m3, linear_e5m2

BUGS = (
    *in_python(
        "linear_e4m3",
        scale_of_another_token=lambda x, x_scale, weight, weight_scale: linear_e4m3(
            x, np.roll(x_scale, 1), weight, weight_scale
        ),
    ),
    *in_python(
        "linear_e5m2",
        weights_of_the_other_kind=lambda x, x_scale, weight, weight_scale: linear_e5m2(
            x, x_scale, weight & 0xFE, weight_scale
        ),
    ),
)
