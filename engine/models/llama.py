"""LLaMA (Touvron et al., arXiv 2302.13971; grouped queries: 2307.09288), dense.

Tensors by their GGUF names. A file may tie `output` to `token_embd` and may have biases of
attention and of networks, as Granite's models of code have, which are LLaMA.
SmolLM 3 (Bakouch et al., 2025) is LLaMA whose every fourth block is without rope, Granite 3 (IBM,
2024) one with scales of the embedding, of attention, of what a block adds, and of the logits, and
ERNIE 4.5 (Baidu, 2025), dense, is LLaMA.
"""

from collections.abc import Mapping

from engine.config import ModelConfig
from engine.graph import Graph, Value
from engine.models import feed_forward, layers
from engine.models.blocks import logits_of_blocks
from engine.models.family import Family
from engine.models.layers import (
    StepInputs,
    attention,
    attention_tensors,
    rotation_of,
    scaled,
)


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor the model needs, with its dimensions (rows, elements)."""
    hidden = config.hidden
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (config.vocab, hidden)}
    for i in range(config.blocks):
        tensors |= {
            f"blk.{i}.attn_norm.weight": (hidden,),
            **attention_tensors(config, i),
            f"blk.{i}.ffn_norm.weight": (hidden,),
        } | feed_forward.expected_tensors(config, i)
    return tensors | {"output_norm.weight": (hidden,)}


def optional_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Tensors a file may have."""
    hidden, q, kv = config.hidden, config.heads * config.head_dim, config.kv_heads * config.head_dim
    tensors = layers.optional_tensors(config)
    for i in range(config.blocks):
        tensors |= {
            f"blk.{i}.attn_q.bias": (q,),
            f"blk.{i}.attn_k.bias": (kv,),
            f"blk.{i}.attn_v.bias": (kv,),
            f"blk.{i}.attn_output.bias": (hidden,),
        }
        if not config.experts or i < config.leading:
            tensors |= feed_forward.biases(config, i)
    return tensors


def build(
    config: ModelConfig,
    weights: Mapping[str, Value],
    inputs: StepInputs,
    caches: Mapping[str, Value],
) -> tuple[Graph, Value]:
    """The nodes of one step and its logits [outputs, vocab]."""
    graph, scales = Graph(), config.scales
    x = graph("embedding", "token_embd", tokens=inputs.tokens, weight=weights["token_embd.weight"])
    x = scaled(graph, "embd", x, scales.embedding)
    rotation = rotation_of(graph, weights, inputs, config)

    def mixed(i: int, h: Value) -> Value:
        turn = rotation if config.turns(i) else None
        return attention(graph, f"blk.{i}", h, weights, inputs, caches, config, turn, "rope_norm")

    logits = logits_of_blocks(graph, x, mixed, weights, inputs, config)
    return graph, scaled(graph, "logits_scaled", logits, scales.logits)


FAMILY = Family(expected_tensors, build, optional_tensors)
