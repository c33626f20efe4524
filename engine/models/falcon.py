"""Falcon (Almazrouei et al., arXiv 2311.16867), dense: attention and feed-forward side by side.

Tensors by their GGUF names. Queries, keys and values are rows of one tensor, in this order. Where a
block has `attn_norm_2` (the 40B), attention reads that norm and the feed-forward network the other.
"""

from engine.config import ModelConfig
from engine.graph import Value
from engine.models import feed_forward
from engine.models.blocks import parallel_residual
from engine.models.family import Family, fused_qkv
from engine.models.network import Network
from engine.models.tensors import Tensors, attention_tensors, with_biases


def block(config: ModelConfig, i: int) -> Tensors:
    """The tensors of block i, with dimensions (rows, elements)."""
    return {
        **with_biases({"attn_norm.weight": (config.hidden,)}),
        **attention_tensors(config),
        **feed_forward.tensors(config, i),
    }


def optional_block(config: ModelConfig, i: int) -> Tensors:
    """Optional tensors of a block."""
    return with_biases({"attn_norm_2.weight": (config.hidden,)})


def last(config: ModelConfig) -> Tensors:
    """The tensors after the blocks."""
    return with_biases({"output_norm.weight": (config.hidden,)})


def build(net: Network) -> Value:
    """The nodes of one step; its logits [outputs, vocab]."""
    x, rotation = net.embedded(), net.rotation()
    for i in range(net.config.blocks):
        h = read = net.layer_norm(f"blk.{i}.attn_norm", x)
        if f"blk.{i}.attn_norm_2.weight" in net.weights:
            read = net.layer_norm(f"blk.{i}.attn_norm_2", x)
        x = parallel_residual(net, i, x, net.attention(i, read, rotation), h)
    return net.logits(net.layer_norm("output_norm", net.wanted(x)))


FAMILY = Family(block, build, optional_block, last=last, parts=fused_qkv)
