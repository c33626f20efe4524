"""Planted bugs of causal_conv1d."""

import numpy as np

from conformance.bugs.bug import in_python
from reference.causal_conv1d import causal_conv1d
from reference.op import Array


def no_bias(x, weight, bias, before, sources, targets):
    return causal_conv1d(x, weight, 0 * bias, before, sources, targets)


def taps_the_other_way(x, weight, bias, before, sources, targets):
    return causal_conv1d(x, weight[::-1], bias, before, sources, targets)


def every_token_from_its_slot(x, weight, bias, before, sources, targets):
    return causal_conv1d(x, weight, bias, before, np.maximum(sources, 0), targets)


def nothing_kept(x, weight, bias, before, sources, targets):
    out, _ = causal_conv1d(x, weight, bias, before, sources, targets)
    return out, before


def one_text(x, weight, bias, before, sources, targets):
    alone = sources.copy()
    alone[1:] = -1
    return causal_conv1d(x, weight, bias, before, alone, targets)


def state_of_the_token_before(
    x: Array, weight: Array, bias: Array, before: Array, sources: Array, targets: Array
) -> tuple[Array, Array]:
    out, states = causal_conv1d(x, weight, bias, before, sources, targets)
    states[targets[targets >= 0], -1] = 0
    return out, states


BUGS = in_python(
    "causal_conv1d",
    no_bias,
    taps_the_other_way,
    every_token_from_its_slot,
    nothing_kept,
    one_text,
    state_of_the_token_before,
)
