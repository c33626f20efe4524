"""Command R and Command R7B (Cohere, 2024): attention and the feed-forward network side by side.

Both read one LayerNorm, which has no bias, and the logits have a scale. Of Command R7B, `cohere2`
in GGUF, three of four blocks have a window, and the fourth turns nothing by its position. Command
R+ has a norm of each head of queries and keys.
"""

from typing import Any

import numpy as np

from engine.config import ModelConfig
from engine.graph import Value
from engine.models import feed_forward
from engine.models.blocks import parallel_residual
from engine.models.family import Family
from engine.models.network import Network
from engine.models.tensors import (
    Constants,
    Tensors,
    attention_biases,
    attention_tensors,
    head_norms,
    no_bias,
    plain_norm,
    rope_constants,
)


def block(config: ModelConfig, i: int) -> Tensors:
    """The tensors of block i, with dimensions (rows, elements)."""
    return {
        "attn_norm.weight": (config.hidden,),
        **attention_tensors(config),
        **feed_forward.tensors(config, i),
    }


def optional_block(config: ModelConfig, i: int) -> Tensors:
    """Optional tensors of a block."""
    norms = head_norms(config) if config.architecture == "command-r" else {}
    return attention_biases(config) | norms


def constants(config: ModelConfig, divisors: np.ndarray[Any, Any] | None) -> Constants:
    """Constants of rope, and of norms without a bias and of heads."""
    return rope_constants(config, divisors) | no_bias(config) | plain_norm(config)


def build(net: Network) -> Value:
    """The nodes of one step; its logits [outputs, vocab]."""
    x, rotation, config = net.embedded(), net.rotation(), net.config
    for i in range(config.blocks):
        h = net.layer_norm(f"blk.{i}.attn_norm", x)
        attended = net.attention(i, h, rotation if config.has_rope(i) else None, "rope_norm")
        x = parallel_residual(net, i, x, attended, h)
    logits = net.logits(net.layer_norm("output_norm", net.wanted(x)))
    return net.scaled("logits_scaled", logits, config.scales.logits)


FAMILY = Family(block, build, optional_block, constants=constants)
