"""Planted bugs of what keeps a state."""

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.bugs.bug import Bug, changed, in_python
from reference.op import Array
from reference.recurrent import state
from reference.recurrent.causal_conv1d import causal_conv1d
from reference.recurrent.gated_delta_net import gated_delta_net, read
from reference.recurrent.ssm_scan import ssm_scan, ssm_scan_heads

Step = Callable[..., tuple[Array, Array]]


def of_states(op: str, step: Step, read_by: str = "") -> tuple[Bug, ...]:
    """Those of every op with a state: of one that gives an output and `before` with what was put
    into its slots; `read_by` is the argument that reads a state."""

    def nothing_kept(**given: Any) -> tuple[Array, Array]:
        return step(**given)[0], given["before"]

    def one_text(sources: Array) -> Array:
        return np.where(np.arange(len(sources)) == 0, sources, -1)

    found = {
        "nothing_kept": nothing_kept,
        "one_text": changed(step, sources=one_text),
        "every_token_from_a_slot": changed(step, sources=lambda s: np.maximum(s, 0)),
    }
    if read_by:
        late = {read_by: lambda rows: np.roll(rows, 1, axis=0)}
        found["read_before_it_moves"] = changed(step, **late)
    return in_python(op, **found)


def state_of_the_token_before(**given: Any) -> tuple[Array, Array]:
    (out, states), targets = causal_conv1d(**given), given["targets"]
    states[targets[targets >= 0], -1] = 0
    return out, states


def spoilt(op: str, scan: Step) -> tuple[Bug, ...]:
    """Of either scan."""
    return of_states(op, scan, read_by="c") + in_python(
        op,
        growing=changed(scan, a=np.negative),
        never_forgotten=changed(scan, a=lambda a: np.maximum(a, -8)),
        no_d=changed(scan, d=np.zeros_like),
        decay_in_float16=changed(scan, a=lambda a: a.astype(np.float16).astype(np.float32)),
    )


def groups_in_turn(**given: Any) -> tuple[Array, Array]:
    heads, groups = given["x"].shape[1], given["b"].shape[1]
    order = np.arange(heads) % groups
    return ssm_scan_heads(**{**given, "b": given["b"][:, order], "c": given["c"][:, order]})


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


def delta_groups_in_turn(**given: Any) -> tuple[Array, Array]:
    turns = np.arange(given["v"].shape[1]) % given["q"].shape[1]
    return gated_delta_net(**{**given, "group_of": turns})


BUGS = (
    *of_states("causal_conv1d", causal_conv1d),
    *in_python(
        "causal_conv1d",
        state_of_the_token_before,
        no_bias=changed(causal_conv1d, bias=np.zeros_like),
        taps_the_other_way=changed(causal_conv1d, weight=np.flipud),
    ),
    *spoilt("ssm_scan", ssm_scan),
    *spoilt("ssm_scan_heads", ssm_scan_heads),
    *in_python("ssm_scan_heads", groups_in_turn),
    *of_states("gated_delta_net", gated_delta_net, read_by="q"),
    *in_python(
        "gated_delta_net",
        plain_linear_attention,
        groups_in_turn=delta_groups_in_turn,
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
