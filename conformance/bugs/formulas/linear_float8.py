"""Planted bugs of linear_float8."""

import numpy as np

from conformance.bugs.bug import changed, in_python
from reference.schemes.linear_float8 import linear_e4m3, linear_e5m2

BUGS = (
    *in_python(
        "linear_e4m3",
        scale_of_another_token=changed(linear_e4m3, x_scale=lambda scale: np.roll(scale, 1)),
    ),
    *in_python(
        "linear_e5m2",
        weights_of_the_other_kind=changed(linear_e5m2, weight=lambda codes: codes & 0xFE),
    ),
)
