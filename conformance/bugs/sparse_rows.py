"""What planted bugs of the ops over active neurons' rows have in common."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from reference.op import Array

Inputs = dict[str, Any]
Outputs = Mapping[str, Array]


def some_rows(inputs: Inputs, slots: Array) -> Array:
    """Slots within what is held, so that a bug has rows to read."""
    return slots % len(inputs["weight"])


def slots_ignored(inputs: Inputs) -> Inputs:
    """Neuron i's row taken for row i."""
    return {**inputs, "slots": some_rows(inputs, np.arange(len(inputs["slots"])))}


def slots_of_the_list(inputs: Inputs) -> Inputs:
    """slots[j] taken for the j-th active neuron's, not for neuron j's."""
    active = active_of(inputs)
    slots = np.zeros_like(inputs["slots"])
    slots[active] = some_rows(inputs, inputs["slots"][: len(active)])
    return {**inputs, "slots": slots}


def active_of(inputs: Inputs) -> Array:
    return np.asarray(inputs["rows"][: inputs["count"][0]])
