"""A feed-forward network that is a mixture of experts (Shazeer et al., arXiv 1701.06538), whatever
the family: a router gives every token to a few of many networks, and what they make of it is added
in the order of their numbers, so that no bit depends on who else is in the batch.

Experts' matrices are one tensor of the file, [experts, rows, elements]. What each token meets
beside its experts, if anything, is a shared network, which a gate of its own may weigh (Qwen 1.5).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from engine.config import Experts, ModelConfig
from engine.graph import Graph, Value
from engine.models.family import OfEach, Shaped
from engine.models.layers import project, scaled

MATRICES = ("ffn_gate", "ffn_up", "ffn_down")
SCALARS: Mapping[str, dict[str, Any]] = {"swiglu_oai": {"alpha": 1.702, "limit": 7.0}}
NO_BIAS, SLOTS = "experts.no_bias", "experts.slots"
BOTH = "ffn_gate_up_exps"


def expected_tensors(config: ModelConfig, own: Experts, i: int) -> dict[str, tuple[int, ...]]:
    """What block i needs, with dimensions ([experts], rows, elements)."""
    block, hidden = f"blk.{i}", config.hidden
    tensors: dict[str, tuple[int, ...]] = {f"{block}.ffn_gate_inp.weight": (own.count, hidden)}
    for name in MATRICES:
        rows, elements = (hidden, own.ffn) if name == "ffn_down" else (own.ffn, hidden)
        if name == "ffn_down" or not own.joined:
            tensors[f"{block}.{name}_exps.weight"] = (own.count, rows, elements)
        elif name == "ffn_gate":
            tensors[f"{block}.{BOTH}.weight"] = (own.count, 2 * rows, elements)
        if own.shared:
            rows, elements = (hidden, own.shared) if name == "ffn_down" else (own.shared, hidden)
            tensors[f"{block}.{name}_shexp.weight"] = (rows, elements)
    if own.shared_gate:
        tensors[f"{block}.ffn_gate_inp_shexp.weight"] = (1, hidden)
    return tensors


def optional_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """What scores may have added where experts are chosen, and there alone (DeepSeek V3)."""
    if not (own := config.experts):
        return {}
    blocks = range(config.leading, config.blocks)
    return {f"blk.{i}.exp_probs_b.bias": (own.count,) for i in blocks}


def parts(config: ModelConfig) -> dict[str, OfEach | Shaped]:
    """Gates and ups out of a tensor that has both, and a row for each expert of what multiplies
    what it gives, where a file has such."""
    if not (own := config.experts):
        return {}
    found: dict[str, OfEach | Shaped] = {}
    for block in (f"blk.{i}" for i in range(config.leading, config.blocks)):
        found[f"{block}.ffn_down_exps.scale"] = Shaped(
            f"{block}.ffn_down_exps.scale", (own.count, 1)
        )
        for name, first in (("ffn_gate", 0), ("ffn_up", own.ffn)) if own.joined else ():
            found[f"{block}.{name}_exps.weight"] = OfEach(f"{block}.{BOTH}.weight", first, own.ffn)
    return found


def constants(own: Experts) -> dict[str, np.ndarray[Any, Any]]:
    """What scores have added where the file has no bias of the choice, and where each expert's
    weights lie when all of them are in memory."""
    return {
        NO_BIAS: np.zeros(own.count, np.float32),
        SLOTS: np.arange(own.count, dtype=np.int32),
    }


def mixture(
    graph: Graph,
    i: int,
    x: Value,
    weights: Mapping[str, Value],
    config: ModelConfig,
    own: Experts,
    routed: Value | None = None,
) -> Value:
    """The sum of weight_e * network_e(x) over the experts e of each token, and the shared network.

    x [tokens hidden] is normalised, and what the router reads unless that is `routed`.
    -> [tokens hidden].
    """
    block = f"blk.{i}"
    shares, chosen = _routed(graph, block, routed or x, weights, own)
    rows, expert, places, ends, *_ = graph.several(
        "sort_by_expert", f"{block}.sorted", chosen=chosen, experts=own.count
    )

    def experts(x: Value, name: str) -> Value:
        label = f"{block}.{name}_exps"
        weight, slots = weights[f"{label}.weight"], weights[SLOTS]
        out = graph("linear_experts", label, x=x, ends=ends, weight=weight, slots=slots)
        if bias := weights.get(f"{label}.bias"):
            picked = graph("embedding", f"{label}.biases", tokens=expert, weight=bias)
            out = graph("add", f"{label}.biased", x=out, y=picked)
        return out

    pairs = graph("embedding", f"{block}.pairs", tokens=rows, weight=x.as_weight())
    gate, up = experts(pairs, "ffn_gate"), experts(pairs, "ffn_up")
    label = f"{block}.{config.activation}_exps"
    active = graph(config.activation, label, gate=gate, up=up, **SCALARS.get(config.activation, {}))
    down = experts(active, "ffn_down")
    out = graph("sum_experts", f"{block}.experts", y=down, places=places, weights=shares)
    if not own.shared:
        return out
    shared = _shared(graph, block, x, weights, config, own)
    return graph("add", f"{block}.both", x=out, y=shared)


def _routed(
    graph: Graph, block: str, x: Value, weights: Mapping[str, Value], own: Experts
) -> tuple[Value, Value]:
    """Weights f32 [tokens used] and numbers i32 [tokens used] of each token's experts."""
    scores = project(graph, weights, f"{block}.ffn_gate_inp", x)
    if own.scores:
        scores = graph(own.scores, f"{block}.ffn_scores", x=scores)
    chosen = graph(
        "choose_experts",
        f"{block}.chosen",
        scores=scores,
        bias=weights.get(f"{block}.exp_probs_b.bias") or weights[NO_BIAS],
        used=own.used,
        groups=own.groups,
        kept=own.kept,
    )
    shares = graph("scores_of_chosen", f"{block}.picked", scores=scores, chosen=chosen)
    if not own.scores:
        shares = graph("softmax", f"{block}.shares", x=shares)
    elif own.normed:
        shares = graph("shares_of_sum", f"{block}.shares", weights=shares)
    if factors := weights.get(f"{block}.ffn_down_exps.scale"):
        tokens, used = chosen.dims
        each = chosen.view(f"{tokens}*{used}")
        each = graph("embedding", f"{block}.factors", tokens=each, weight=factors)
        shares = graph("mul", f"{block}.shares_times", x=shares, y=each.view(tokens, used))
    return scaled(graph, f"{block}.shares_scaled", shares, own.scale), chosen


def _shared(
    graph: Graph,
    block: str,
    x: Value,
    weights: Mapping[str, Value],
    config: ModelConfig,
    own: Experts,
) -> Value:
    """The network that every token meets, times sigmoid(gate . x) where it has a gate."""
    gate, up = (project(graph, weights, f"{block}.ffn_{n}_shexp", x) for n in ("gate", "up"))
    active = graph(config.activation, f"{block}.{config.activation}_shexp", gate=gate, up=up)
    out = project(graph, weights, f"{block}.ffn_down_shexp", active)
    if not own.shared_gate:
        return out
    gate = project(graph, weights, f"{block}.ffn_gate_inp_shexp", x)
    return graph("open_gate", f"{block}.shexp_gated", x=out, gate=gate)
