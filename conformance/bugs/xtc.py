"""Planted bugs of xtc."""

from typing import Any

import numpy as np

from conformance.bugs.bug import in_python
from reference.op import Array
from reference.samplers.xtc import xtc


def threshold_in_float32(**inputs: Any) -> Array:
    return xtc(**{**inputs, "threshold": float(np.float32(inputs["threshold"]))})


def never(**inputs: Any) -> Array:
    return inputs["logits"]


BUGS = (*in_python("xtc", never),)
