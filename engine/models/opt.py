"""OPT (Zhang et al., arXiv 2205.01068), dense, its norms before what they feed.

The architecture `opt` of GGUF is PowerInfer's. Every projection has a bias. Positions are learned:
their table begins with two rows that no position has, and the context length counts those, too.
"""

from typing import Any

import numpy as np

from engine.config import ModelConfig
from engine.graph import Value
from engine.models import feed_forward
from engine.models.blocks import logits_of_blocks
from engine.models.family import Family, Rows, output
from engine.models.network import Network
from engine.models.tensors import Constants, Tensors, attention_tensors, no_slopes, with_biases
from reference.models.opt import UNUSED


def first(config: ModelConfig) -> Tensors:
    """What follows the embedding."""
    return {"position_embd.weight": (config.positions + UNUSED, config.hidden)}


def block(config: ModelConfig, i: int) -> Tensors:
    """What block i needs, with dimensions (rows, elements)."""
    norms = {f"{name}.weight": (config.hidden,) for name in ("attn_norm", "ffn_norm")}
    return {
        **with_biases({**norms, **attention_tensors(config)}),
        **feed_forward.tensors(config, i),
        **feed_forward.biases(config),
    }


def last(config: ModelConfig) -> Tensors:
    """What follows the blocks."""
    return with_biases({"output_norm.weight": (config.hidden,)})


def parts(config: ModelConfig) -> dict[str, Rows]:
    """The rows that positions have."""
    return {"position_embd.used": Rows("position_embd.weight", UNUSED, config.positions)}


def constants(config: ModelConfig, divisors: np.ndarray[Any, Any] | None) -> Constants:
    """Those of attention without ALiBi."""
    return no_slopes(config)


def build(net: Network) -> Value:
    """The nodes of one step; its logits [outputs, vocab]."""
    x, table = net.embedded(), net.weights["position_embd.used"]
    where = net.graph("embedding", "position_embd", tokens=net.inputs.positions, weight=table)
    return logits_of_blocks(net, net.add("embd", x, where), net.attention, net.layer_norm)


FAMILY = Family(
    block, build, first=first, last=last, optional=output, parts=parts, constants=constants
)
