"""Planted bugs of the gated delta rule."""

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.bugs.bug import in_python
from reference import state
from reference.gated_delta_net import gated_delta_net, read
from reference.op import Array

Step = Callable[..., tuple[Array, Array]]


def changed(**changes: Callable[..., Array]) -> Step:
    """The op of arguments of which some are others."""

    def wrong(**given: Any) -> tuple[Array, Array]:
        other = {name: of(given[name]) for name, of in changes.items()}
        return gated_delta_net(**{**given, **other})

    return wrong


def nothing_kept(**given: Any) -> tuple[Array, Array]:
    return gated_delta_net(**given)[0], given["before"]


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


def read_before_it_moves(**given: Any) -> tuple[Array, Array]:
    return gated_delta_net(**{**given, "q": np.roll(given["q"], 1, axis=0)})


def groups_in_turn(**given: Any) -> tuple[Array, Array]:
    turns = np.arange(given["v"].shape[1]) % given["q"].shape[1]
    return gated_delta_net(**{**given, "group_of": turns})


def one_text(sources: Array) -> Array:
    return np.where(np.arange(len(sources)) == 0, sources, -1)


BUGS = in_python(
    "gated_delta_net",
    nothing_kept,
    plain_linear_attention,
    read_before_it_moves,
    groups_in_turn,
    growing=changed(g=np.negative),
    never_forgotten=changed(g=lambda g: np.maximum(g, -8)),
    always_put=changed(beta=np.ones_like),
    never_whole=changed(beta=lambda beta: np.minimum(beta, np.float32(0.999))),
    one_text=changed(sources=one_text),
    every_token_from_a_slot=changed(sources=lambda sources: np.maximum(sources, 0)),
    keys_in_float16=changed(k=lambda k: k.astype(np.float16).astype(np.float32)),
    keys_not_quite_short=changed(k=lambda k: k * np.float32(1 + 2**-10)),
)
