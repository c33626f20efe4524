"""A mixture-of-experts feed-forward network (Shazeer et al., arXiv 1701.06538) for any family: a
router sends every token to a few of many networks, and their outputs are added in the order of
expert indices, so that no bit depends on the batch.

Experts' matrices are one tensor of the file, [experts, rows, elements]. A shared network, if there
is one, is applied to every token; a gate may weight it (Qwen 1.5).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from engine.config import Experts, ModelConfig
from engine.graph import Value
from engine.models.family import OfEach, Shaped
from engine.models.network import Network
from engine.models.tensors import Tensors

MATRICES = ("ffn_gate", "ffn_up", "ffn_down")
SCALARS: Mapping[str, dict[str, Any]] = {"swiglu_oai": {"alpha": 1.702, "limit": 7.0}}
NO_BIAS, SLOTS = "experts.no_bias", "experts.slots"
BOTH = "ffn_gate_up_exps"


def tensors(config: ModelConfig, own: Experts) -> Tensors:
    """The tensors of a block, with dimensions ([experts], rows, elements)."""
    hidden = config.hidden
    found: Tensors = {"ffn_gate_inp.weight": (own.count, hidden)}
    for name in MATRICES:
        rows, elements = (hidden, own.ffn) if name == "ffn_down" else (own.ffn, hidden)
        if name == "ffn_down" or not own.joined:
            found[f"{name}_exps.weight"] = (own.count, rows, elements)
        elif name == "ffn_gate":
            found[f"{BOTH}.weight"] = (own.count, 2 * rows, elements)
        if own.shared:
            rows, elements = (hidden, own.shared) if name == "ffn_down" else (own.shared, hidden)
            found[f"{name}_shexp.weight"] = (rows, elements)
    if own.shared_gate:
        found["ffn_gate_inp_shexp.weight"] = (1, hidden)
    return found


def optional(config: ModelConfig, i: int) -> Tensors:
    """The optional bias of scores that affects only the choice of experts (DeepSeek V3)."""
    own = config.experts
    return {"exp_probs_b.bias": (own.count,)} if own and config.is_mixture(i) else {}


def parts(config: ModelConfig) -> dict[str, OfEach | Shaped]:
    """Gates and ups of a tensor that holds both, and one row per expert of output scales, where a
    file has them."""
    if not (own := config.experts):
        return {}
    found: dict[str, OfEach | Shaped] = {}
    for block in (f"blk.{i}" for i in range(config.blocks) if config.is_mixture(i)):
        found[f"{block}.ffn_down_exps.scale"] = Shaped(
            f"{block}.ffn_down_exps.scale", (own.count, 1)
        )
        for name, first in (("ffn_gate", 0), ("ffn_up", own.ffn)) if own.joined else ():
            found[f"{block}.{name}_exps.weight"] = OfEach(f"{block}.{BOTH}.weight", first, own.ffn)
    return found


def constants(own: Experts) -> dict[str, np.ndarray[Any, Any]]:
    """A zero bias where the file has no bias of the choice, and each expert's index when all
    weights are in memory."""
    return {
        NO_BIAS: np.zeros(own.count, np.float32),
        SLOTS: np.arange(own.count, dtype=np.int32),
    }


def mixture(net: Network, i: int, x: Value, own: Experts, routed: Value | None = None) -> Value:
    """The sum of weight_e * network_e(x) over the experts e of each token, and the shared network.

    x [tokens hidden] is normalised, and what the router reads unless that is `routed`.
    -> [tokens hidden].
    """
    block, graph, activation = f"blk.{i}", net.graph, net.config.activation
    shares, chosen = _routed(net, block, routed or x, own)
    rows, expert, places, ends, *_ = graph.multi_output(
        "sort_by_expert", f"{block}.sorted", chosen=chosen, experts=own.count
    )

    def experts(x: Value, name: str) -> Value:
        label = f"{block}.{name}_exps"
        weight, slots = net.weights[f"{label}.weight"], net.weights[SLOTS]
        out = graph("linear_experts", label, x=x, ends=ends, weight=weight, slots=slots)
        if bias := net.weights.get(f"{label}.bias"):
            picked = graph("embedding", f"{label}.biases", tokens=expert, weight=bias)
            out = net.add(f"{label}.biased", out, picked)
        return out

    pairs = graph("embedding", f"{block}.pairs", tokens=rows, weight=x.as_weight())
    gate, up = experts(pairs, "ffn_gate"), experts(pairs, "ffn_up")
    label, scalars = f"{block}.{activation}_exps", SCALARS.get(activation, {})
    active = graph(activation, label, gate=gate, up=up, **scalars)
    down = experts(active, "ffn_down")
    out = graph("sum_experts", f"{block}.experts", y=down, places=places, weights=shares)
    return net.add(f"{block}.both", out, _shared(net, block, x, own)) if own.shared else out


def _routed(net: Network, block: str, x: Value, own: Experts) -> tuple[Value, Value]:
    """Weights f32 [tokens used] and indices i32 [tokens used] of each token's experts."""
    graph, weights = net.graph, net.weights
    scores = net.project(f"{block}.ffn_gate_inp", x)
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
    shares = graph("gather_scores", f"{block}.picked", scores=scores, chosen=chosen)
    if not own.scores:
        shares = graph("softmax", f"{block}.shares", x=shares)
    elif own.normed:
        shares = graph("normalise_weights", f"{block}.shares", weights=shares)
    if factors := weights.get(f"{block}.ffn_down_exps.scale"):
        tokens, used = chosen.dims
        each = chosen.view(f"{tokens}*{used}")
        each = graph("embedding", f"{block}.factors", tokens=each, weight=factors)
        shares = graph("mul", f"{block}.shares_times", x=shares, y=each.view(tokens, used))
    return net.scaled(f"{block}.shares_scaled", shares, own.scale), chosen


def _shared(net: Network, block: str, x: Value, own: Experts) -> Value:
    """The shared network's output, times sigmoid(gate . x) where it has a gate."""
    activation = net.config.activation
    gate, up = (net.project(f"{block}.ffn_{name}_shexp", x) for name in ("gate", "up"))
    active = net.graph(activation, f"{block}.{activation}_shexp", gate=gate, up=up)
    out = net.project(f"{block}.ffn_down_shexp", active)
    if not own.shared_gate:
        return out
    gate = net.project(f"{block}.ffn_gate_inp_shexp", x)
    return net.graph("sigmoid_gate", f"{block}.shexp_gated", x=out, gate=gate)
