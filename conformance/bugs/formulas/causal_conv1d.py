"""Planted bugs of causal_conv1d."""

from typing import Any

import numpy as np

from conformance.bugs.bug import changed, in_python
from conformance.bugs.recurrent import of_states
from reference.op import Array
from reference.recurrent.causal_conv1d import causal_conv1d


def state_of_the_token_before(**given: Any) -> tuple[Array, Array]:
    (out, states), targets = causal_conv1d(**given), given["targets"]
    states[targets[targets >= 0], -1] = 0
    return out, states


BUGS = (
    *of_states("causal_conv1d", causal_conv1d),
    *in_python(
        "causal_conv1d",
        state_of_the_token_before,
        no_bias=changed(causal_conv1d, bias=np.zeros_like),
        taps_the_other_way=changed(causal_conv1d, weight=np.flipud),
    ),
)
