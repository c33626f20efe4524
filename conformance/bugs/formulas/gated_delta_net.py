"""Planted bugs of the gated delta rule."""

from typing import Any

import numpy as np

from conformance.bugs.bug import changed, in_python
from conformance.bugs.recurrent import of_states
from reference.op import Array
from reference.recurrent import state
from reference.recurrent.gated_delta_net import gated_delta_net, read


def plain_linear_attention(**given: Any) -> tuple[Array, Array]:
    """Values are added to what is there already under their keys."""
    of, states = given["group_of"], given["before"].astype(np.float64)
    out = np.zeros(given["v"].shape)
    for s, t in state.runs(given["sources"], given["targets"], states):
        put = given["beta"][t][:, None] * given["v"][t].astype(np.float64)
        s *= np.exp(given["g"][t].astype(np.float64))[:, None, None]
        s += given["k"][t][of][:, :, None] * put[:, None, :]
        out[t] = read(s, given["q"][t][of].astype(np.float64))
    return out, states


def groups_in_turn(**given: Any) -> tuple[Array, Array]:
    turns = np.arange(given["v"].shape[1]) % given["q"].shape[1]
    return gated_delta_net(**{**given, "group_of": turns})


BUGS = (
    *of_states("gated_delta_net", gated_delta_net, read_by="q"),
    *in_python(
        "gated_delta_net",
        plain_linear_attention,
        groups_in_turn,
        growing=changed(gated_delta_net, g=np.negative),
        never_forgotten=changed(gated_delta_net, g=lambda g: np.maximum(g, -8)),
        always_put=changed(gated_delta_net, beta=np.ones_like),
        never_whole=changed(gated_delta_net, beta=lambda b: np.minimum(b, np.float32(0.999))),
        keys_in_float16=changed(
            gated_delta_net, k=lambda k: k.astype(np.float16).astype(np.float32)
        ),
        keys_not_quite_short=changed(gated_delta_net, k=lambda k: k * np.float32(1 + 2**-10)),
    ),
)
