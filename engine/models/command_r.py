"""Command R and Command R7B (Cohere, 2024): attention and the feed-forward network side by side.

Both read one LayerNorm, which has no bias, and the logits have a scale. Of Command R7B, `cohere2`
in GGUF, three of four blocks have a window, and the fourth turns nothing by its position. Command
R+ has a norm of each head of queries and keys.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from engine.config import ModelConfig
from engine.graph import Graph, Value
from engine.models import feed_forward, layers
from engine.models.family import Family
from engine.models.layers import (
    StepInputs,
    attention,
    attention_tensors,
    head_norms,
    layer_norm,
    logits_of,
    no_bias,
    plain_norm,
    rope_constants,
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
        } | feed_forward.expected_tensors(config, i)
    return tensors | {"output_norm.weight": (hidden,)}


def optional_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Tensors a file may have."""
    tensors = layers.optional_tensors(config)
    if config.architecture == "command-r":
        for i in range(config.blocks):
            tensors |= head_norms(config, i)
    return tensors


def constants(config: ModelConfig, divisors: np.ndarray[Any, Any] | None) -> dict[str, Any]:
    """Arrays that are neither in the file nor computed by a node."""
    return rope_constants(config, divisors) | no_bias(config) | plain_norm(config)


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
        turn = rotation if config.turns(i) else None
        attended = attention(graph, block, h, weights, inputs, caches, config, turn, "rope_norm")
        fed = feed_forward.feed_forward(graph, i, h, weights, config)
        both = graph("add", f"{block}.both", x=fed, y=attended)
        x = graph("add", f"{block}.residual", x=x, y=both)
    x = graph("embedding", "rows", tokens=inputs.rows, weight=x.as_weight())
    x = layer_norm(graph, weights, "output_norm", x, config)
    logits = logits_of(graph, weights, x)
    return graph, scaled(graph, "logits_scaled", logits, config.scales.logits)


FAMILY = Family(expected_tensors, build, optional_tensors, constants=constants)
