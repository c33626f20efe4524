"""A mixture-of-experts feed-forward network (Shazeer et al., arXiv 1701.06538), in reference ops: y
= sum over the chosen experts e of g_e E_e(x)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from reference.activations import sigmoid
from reference.arithmetic import add, mul, scale
from reference.embedding import embedding
from reference.experts import (
    choose_experts,
    gather_scores,
    normalise_weights,
    sigmoid_gate,
    sort_by_expert,
    sum_experts,
)
from reference.gated_activations import swiglu
from reference.linear_experts import linear_experts
from reference.softmax import softmax

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Mixture:
    """Each token goes to `used` of `count` experts. Gates are softmax over all logits, or `sigmoid`
    of each, divided by the sum of the chosen ones if `normed`; or, with `of_chosen`, softmax over
    the chosen logits."""

    count: int
    used: int
    normed: bool = True
    of_chosen: bool = False
    scale: float = 1.0
    groups: int = 1
    kept: int = 1
    sigmoid: bool = False


def mixture(
    x: Array,
    block: str,
    weights: Mapping[str, Any],
    norms: Mapping[str, Array],
    own: Mixture,
    project: Callable[[Array, str], Array],
    linear: Callable[[Array, Array, str], Array],
    activation: Callable[[Array, Array], Array] = swiglu,
    routed: Array | None = None,
) -> Array:
    """The output of a block's experts, and of its shared expert if there is one.

    x [tokens, hidden], normalised; weights, by their GGUF names, of experts are uint8 [experts,
    rows, row_bytes]; project(x, NAME) is linear with the tensor NAME.weight and its bias; the
    router reads `routed` or, without it, x -> float64 [tokens, hidden].
    """
    scores = project(x if routed is None else routed, f"{block}.ffn_gate_inp")
    if not own.of_chosen:
        scores = sigmoid(scores) if own.sigmoid else softmax(scores)
    bias = norms.get(f"{block}.exp_probs_b.bias", np.zeros(own.count, np.float32))
    ranked = scores.astype(np.float32)
    chosen = choose_experts(ranked, bias, own.used, own.groups, own.kept)
    shares = gather_scores(scores, chosen)
    if own.of_chosen:
        shares = softmax(shares)
    elif own.normed:
        shares = normalise_weights(shares)
    if (factors := norms.get(f"{block}.ffn_down_exps.scale")) is not None:
        shares = mul(shares, factors[chosen])
    rows, expert, places, ends, *_ = sort_by_expert(chosen, own.count)
    slots = np.arange(own.count, dtype=np.int32)

    def experts(x: Array, name: str) -> Array:
        weight = weights[f"{block}.{name}_exps.weight"]
        out = linear_experts(x, ends, weight.data, slots, weight.format, linear)
        if (bias := weights.get(f"{block}.{name}_exps.bias")) is None:
            return out
        return add(out, embedding(expert, bias.data, bias.format))

    fed = activation(experts(x[rows], "ffn_gate"), experts(x[rows], "ffn_up"))
    out = sum_experts(experts(fed, "ffn_down"), places, scale(shares, own.scale))
    if f"{block}.ffn_up_shexp.weight" not in weights:
        return out
    gate, up = (project(x, f"{block}.ffn_{n}_shexp") for n in ("gate", "up"))
    shared = project(activation(gate, up), f"{block}.ffn_down_shexp")
    if f"{block}.ffn_gate_inp_shexp.weight" in norms:
        row = norms[f"{block}.ffn_gate_inp_shexp.weight"].astype(np.float64)
        shared = sigmoid_gate(shared, (x @ row)[:, None])
    return add(out, shared)
