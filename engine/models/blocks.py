"""The way of most families from embedded tokens to logits: in each block something mixes tokens,
attention for the most part, and then a network feeds each of them forward. Both read a norm of what
there is, and add to it."""

from collections.abc import Callable, Mapping

from engine.config import ModelConfig
from engine.graph import Graph, Value
from engine.models import feed_forward
from engine.models.layers import StepInputs, logits_of, rms_norm, scaled

# rms_norm or layer_norm of layers.py
Norm = Callable[[Graph, Mapping[str, Value], str, Value, ModelConfig], Value]


def logits_of_blocks(
    graph: Graph,
    x: Value,
    mixed: Callable[[int, Value], Value],
    weights: Mapping[str, Value],
    inputs: StepInputs,
    config: ModelConfig,
    norm: Norm = rms_norm,
    after: bool = False,
    last: str = "output_norm",
) -> Value:
    """x [tokens hidden] -> logits [outputs, vocab].

    mixed(i, h) is what block i mixes of h, both [tokens hidden]. `after` says that what is added
    has norms, too, wherever the file has them; in other families post_attention_norm is a name for
    the one that the network reads. `last` is the norm that logits read.
    """

    def normed(x: Value, name: str) -> Value:
        return norm(graph, weights, name, x, config)

    for i in range(config.blocks):
        block, residual = f"blk.{i}", config.scales.residual
        own = mixed(i, normed(x, f"{block}.attn_norm"))
        own = normed(own, f"{block}.post_attention_norm") if after else own
        own = scaled(graph, f"{block}.attn_scaled", own, residual)
        x = graph("add", f"{block}.attn_residual", x=x, y=own)
        other = not after and f"{block}.post_attention_norm.weight" in weights
        h = normed(x, f"{block}.{'post_attention' if other else 'ffn'}_norm")
        fed = feed_forward.feed_forward(graph, i, h, weights, config)
        fed = normed(fed, f"{block}.post_ffw_norm") if after else fed
        fed = scaled(graph, f"{block}.ffn_scaled", fed, residual)
        x = graph("add", f"{block}.ffn_residual", x=x, y=fed)
    x = graph("embedding", "rows", tokens=inputs.rows, weight=x.as_weight())
    return logits_of(graph, weights, normed(x, last))
