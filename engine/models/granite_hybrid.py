"""Granite 4, hybrid (IBM, 2025): most blocks are Mamba 2's, some attend, in IBM's models without
rope. Every block has Granite's scales, and a network, which may be a mixture of experts.

Whether a block attends is told by its heads of keys in the file, 0 for Mamba 2.
"""

from typing import Any

import numpy as np

from engine.config import ModelConfig
from engine.graph import Value
from engine.models import feed_forward, mamba
from engine.models.blocks import logits_of_blocks
from engine.models.family import Family
from engine.models.network import Network
from engine.models.tensors import (
    Constants,
    Tensors,
    attention_biases,
    attention_tensors,
    rope_constants,
)


def block(config: ModelConfig, i: int) -> Tensors:
    """What block i needs, with dimensions (rows, elements)."""
    attends = {"attn_norm.weight": (config.hidden,), **attention_tensors(config)}
    return {
        **(attends if config.has_attention(i) else mamba.block(config, i)),
        "ffn_norm.weight": (config.hidden,),
        **feed_forward.tensors(config, i),
    }


def optional_block(config: ModelConfig, i: int) -> Tensors:
    """What a file may have of a block."""
    return attention_biases(config) if config.has_attention(i) else {}


def constants(config: ModelConfig, divisors: np.ndarray[Any, Any] | None) -> Constants:
    """Rope's, and those of Mamba 2's norms."""
    return rope_constants(config, divisors) | mamba.constants(config, divisors)


def build(net: Network) -> Value:
    """The nodes of one step; its logits [outputs, vocab]."""
    config = net.config
    x, rotation = net.embedded(config.scales.embedding), net.rotation()

    def mixed(i: int, h: Value) -> Value:
        if not config.has_attention(i):
            return mamba.mamba2(net, f"blk.{i}", h)
        return net.attention(i, h, rotation if config.has_rope(i) else None, "rope_norm")

    return net.scaled("logits_scaled", logits_of_blocks(net, x, mixed), config.scales.logits)


FAMILY = Family(block, build, optional_block, parts=mamba.parts, constants=constants)
