"""LLaMA (Touvron et al., arXiv 2302.13971; grouped queries: 2307.09288), dense.

Tensors by their GGUF names. A file may tie `output` to `token_embd` and may have attention biases.
SmolLM 3 (Bakouch et al., 2025) is LLaMA whose every fourth block is without rope, Granite 3 (IBM,
2024) one with scales of the embedding, of attention, of what a block adds, and of the logits, and
ERNIE 4.5 (Baidu, 2025), dense, is LLaMA.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from engine.config import ModelConfig
from engine.graph import Graph, Value
from engine.models import feed_forward
from engine.models.family import Rows
from engine.models.layers import (
    StepInputs,
    attend,
    attention_tensors,
    logits_of,
    project,
    rope_constants,
    rotation_of,
    scaled,
    turned,
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
    tensors: dict[str, tuple[int, ...]] = {
        "output.weight": (config.vocab, hidden),
        "rope_freqs.weight": (config.rope_dims // 2,),
    }
    for i in range(config.blocks):
        tensors |= {
            f"blk.{i}.attn_q.bias": (q,),
            f"blk.{i}.attn_k.bias": (kv,),
            f"blk.{i}.attn_v.bias": (kv,),
            f"blk.{i}.attn_output.bias": (hidden,),
        }
    return tensors


def parts(config: ModelConfig) -> dict[str, Rows]:
    """None: every weight is a tensor."""
    return {}


def constants(config: ModelConfig, divisors: np.ndarray[Any, Any] | None) -> dict[str, Any]:
    """Arrays that are neither in the file nor computed by a node."""
    return rope_constants(config, divisors)


def build(
    config: ModelConfig,
    weights: Mapping[str, Value],
    inputs: StepInputs,
    caches: Mapping[str, Value],
) -> tuple[Graph, Value]:
    """The nodes of one step and its logits [outputs, vocab]."""
    graph, scales = Graph(), config.scales

    def norm(x: Value, name: str) -> Value:
        return graph("rms_norm", name, x=x, weight=weights[f"{name}.weight"], eps=config.norm_eps)

    x = graph("embedding", "token_embd", tokens=inputs.tokens, weight=weights["token_embd.weight"])
    x = scaled(graph, "embd", x, scales.embedding)
    rotation = rotation_of(graph, weights, inputs, config)
    for i in range(config.blocks):
        block = f"blk.{i}"
        h = norm(x, f"{block}.attn_norm")
        q, k, v = (project(graph, weights, f"{block}.attn_{name}", h) for name in "qkv")
        if config.turns(i):
            q, k = turned(graph, "rope_norm", block, q, k, rotation, config)
        attended = attend(graph, block, q, k, v, weights, inputs, caches, config)
        attended = scaled(graph, f"{block}.attn_scaled", attended, scales.residual)
        x = graph("add", f"{block}.attn_residual", x=x, y=attended)
        h = norm(x, f"{block}.ffn_norm")
        fed = feed_forward.feed_forward(graph, i, h, weights, config)
        fed = scaled(graph, f"{block}.ffn_scaled", fed, scales.residual)
        x = graph("add", f"{block}.ffn_residual", x=x, y=fed)
    x = graph("embedding", "rows", tokens=inputs.rows, weight=x.as_weight())
    logits = logits_of(graph, weights, norm(x, "output_norm"))
    return graph, scaled(graph, "logits_scaled", logits, scales.logits)
