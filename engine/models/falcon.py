"""Falcon (Almazrouei et al., arXiv 2311.16867), dense: attention and feed-forward side by side.

Tensors by their GGUF names. Queries, keys and values are rows of one tensor, in this order. Where a
block has `attn_norm_2` (the 40B), attention reads that norm and the feed-forward network the other.
"""

from collections.abc import Mapping

from engine.config import ModelConfig
from engine.graph import Graph, Value
from engine.models import feed_forward, layers
from engine.models.family import Family, Rows, fused_qkv
from engine.models.layers import (
    StepInputs,
    attention,
    attention_tensors,
    layer_norm,
    logits_of,
    rotation_of,
)


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor the model needs, with its dimensions (rows, elements)."""
    hidden = config.hidden
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (config.vocab, hidden)}
    for i in range(config.blocks):
        tensors |= {
            f"blk.{i}.attn_norm.weight": (hidden,),
            f"blk.{i}.attn_norm.bias": (hidden,),
            **attention_tensors(config, i),
        } | feed_forward.expected_tensors(config, i)
    return tensors | {"output_norm.weight": (hidden,), "output_norm.bias": (hidden,)}


def optional_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Tensors a file may have."""
    tensors = layers.optional_tensors(config)
    for i in range(config.blocks):
        tensors |= {f"blk.{i}.attn_norm_2.{kind}": (config.hidden,) for kind in ("weight", "bias")}
    return tensors


def parts(config: ModelConfig) -> dict[str, Rows]:
    """Queries, keys and values, out of one tensor."""
    return fused_qkv(config)


def build(
    config: ModelConfig,
    weights: Mapping[str, Value],
    inputs: StepInputs,
    caches: Mapping[str, Value],
) -> tuple[Graph, Value]:
    """The nodes of one step and its logits [outputs, vocab]."""
    graph = Graph()
    x = graph("embedding", "token_embd", tokens=inputs.tokens, weight=weights["token_embd.weight"])
    rotation = rotation_of(graph, weights, inputs, config)
    for i in range(config.blocks):
        block = f"blk.{i}"
        h = layer_norm(graph, weights, f"{block}.attn_norm", x, config)
        two = f"{block}.attn_norm_2.weight" in weights
        read = layer_norm(graph, weights, f"{block}.attn_norm_2", x, config) if two else h
        attended = attention(graph, block, read, weights, inputs, caches, config, rotation)
        fed = feed_forward.feed_forward(graph, i, h, weights, config)
        both = graph("add", f"{block}.both", x=fed, y=attended)
        x = graph("add", f"{block}.residual", x=x, y=both)
    x = graph("embedding", "rows", tokens=inputs.rows, weight=x.as_weight())
    return graph, logits_of(graph, weights, layer_norm(graph, weights, "output_norm", x, config))


FAMILY = Family(expected_tensors, build, optional_tensors, parts)
