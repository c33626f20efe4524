"""The feed-forward network of a block, whatever the family: what it does with its input is one
function here, and which tensors it needs is another."""

from collections.abc import Mapping

from engine.config import ModelConfig
from engine.graph import Graph, Value
from engine.models.layers import project

GATED = ("swiglu", "reglu")


def expected_tensors(config: ModelConfig, block: str) -> dict[str, tuple[int, ...]]:
    """What block `blk.N` needs, with dimensions (rows, elements)."""
    hidden, ffn = config.hidden, config.ffn
    names = ("ffn_gate", "ffn_up") if config.activation in GATED else ("ffn_up",)
    tensors: dict[str, tuple[int, ...]] = {f"{block}.{n}.weight": (ffn, hidden) for n in names}
    return tensors | {f"{block}.ffn_down.weight": (hidden, ffn)}


def biases(config: ModelConfig, block: str) -> dict[str, tuple[int, ...]]:
    """Those that `feed_forward` adds, if the file has them."""
    return {f"{block}.ffn_up.bias": (config.ffn,), f"{block}.ffn_down.bias": (config.hidden,)}


def feed_forward(
    graph: Graph,
    block: str,
    x: Value,
    residual: Value,
    weights: Mapping[str, Value],
    config: ModelConfig,
) -> Value:
    """down(activation(gate(x), up(x))), or down(activation(up(x))) where there is no gate.

    x [tokens hidden] is normalised; `residual` [tokens hidden], what it was normalised from, is
    what predictors of a sparse network look at. Biases are added where the file has them.
    -> [tokens hidden].
    """
    label = f"{block}.{config.activation}"
    if config.activation in GATED:
        gate, up = (project(graph, weights, f"{block}.ffn_{n}", x) for n in ("gate", "up"))
        active = graph(config.activation, label, gate=gate, up=up)
    else:
        active = graph(config.activation, label, x=project(graph, weights, f"{block}.ffn_up", x))
    return project(graph, weights, f"{block}.ffn_down", active)
