"""gpt-oss (OpenAI, arXiv 2508.10925): LLaMA of experts with biases everywhere, sinks, and windows
in every other block.

Rope turns halves of a head. The router has a bias, and weights are softmax over the chosen; experts
clamp what they gate.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from engine.config import ModelConfig
from engine.graph import Graph, Value
from engine.models import feed_forward
from engine.models.experts import MATRICES
from engine.models.family import Rows
from engine.models.layers import (
    StepInputs,
    attend,
    attention_tensors,
    logits_of,
    project,
    rope_constants,
    rotation_of,
    turned,
    with_biases,
)


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor the model needs, with its dimensions ([experts], rows, elements)."""
    hidden = config.hidden
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (config.vocab, hidden)}
    for i in range(config.blocks):
        block = f"blk.{i}"
        mixture = feed_forward.expected_tensors(config, i)
        tensors |= {
            f"{block}.attn_norm.weight": (hidden,),
            **with_biases(attention_tensors(config, i)),
            f"{block}.attn_sinks.weight": (config.heads,),
            f"{block}.post_attention_norm.weight": (hidden,),
            **mixture,
            f"{block}.ffn_gate_inp.bias": mixture[f"{block}.ffn_gate_inp.weight"][:1],
        }
        for name in MATRICES:
            label = f"{block}.{name}_exps"
            tensors[f"{label}.bias"] = mixture[f"{label}.weight"][:2]
    return tensors | {"output_norm.weight": (hidden,)}


def optional_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Tensors a file may have."""
    return {
        "output.weight": (config.vocab, config.hidden),
        "rope_freqs.weight": (config.rope_dims // 2,),
    }


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
    graph = Graph()

    def norm(x: Value, name: str) -> Value:
        return graph("rms_norm", name, x=x, weight=weights[f"{name}.weight"], eps=config.norm_eps)

    x = graph("embedding", "token_embd", tokens=inputs.tokens, weight=weights["token_embd.weight"])
    rotation = rotation_of(graph, weights, inputs, config)
    for i in range(config.blocks):
        block = f"blk.{i}"
        h = norm(x, f"{block}.attn_norm")
        q, k, v = (project(graph, weights, f"{block}.attn_{name}", h) for name in "qkv")
        q, k = turned(graph, "rope_neox", block, q, k, rotation, config)
        attended = attend(graph, block, q, k, v, weights, inputs, caches, config)
        x = graph("add", f"{block}.attn_residual", x=x, y=attended)
        h = norm(x, f"{block}.post_attention_norm")
        fed = feed_forward.feed_forward(graph, i, h, weights, config)
        x = graph("add", f"{block}.ffn_residual", x=x, y=fed)
    x = graph("embedding", "rows", tokens=inputs.rows, weight=x.as_weight())
    return graph, logits_of(graph, weights, norm(x, "output_norm"))
