"""Gemma (Gemma Team, arXiv 2403.08295), Gemma 2 (arXiv 2408.00118) and Gemma 3 (arXiv 2503.19786),
of text alone.

LLaMA, but for a scaled embedding, to which the output is tied, for rope, which turns halves of a
head, and for GELU. Norms hold what they multiply by: the checkpoints' weights and 1. Gemma 2 has
norms after attention and the network, too, soft caps, and a window in every other block. Gemma 3
has a window in five of six, whose rope has a base of its own, and norms of each head of queries and
keys in place of caps.
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
    rotation_of_windows,
    turned,
)


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor the model needs, with its dimensions (rows, elements)."""
    hidden = config.hidden
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (config.vocab, hidden)}
    for i in range(config.blocks):
        block = f"blk.{i}"
        tensors |= {
            f"{block}.attn_norm.weight": (hidden,),
            **attention_tensors(config, i),
            f"{block}.ffn_norm.weight": (hidden,),
        } | feed_forward.expected_tensors(config, i)
        if config.architecture != "gemma":
            after = ("post_attention_norm", "post_ffw_norm")
            tensors |= {f"{block}.{n}.weight": (hidden,) for n in after}
        if config.architecture == "gemma3":
            tensors |= {f"{block}.attn_{n}_norm.weight": (config.head_dim,) for n in "qk"}
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
        weight = weights.get(f"{name}.weight")
        return graph("rms_norm", name, x=x, weight=weight, eps=config.norm_eps) if weight else x

    def heads_normed(x: Value, name: str, heads: int) -> Value:
        return norm(x.view(f"{inputs.tokens.dims[0]}*{heads}", config.head_dim), name)

    x = graph("embedding", "token_embd", tokens=inputs.tokens, weight=weights["token_embd.weight"])
    x = graph("scale", "embd", x=x, factor=config.hidden**0.5)
    rotation = rotation_of(graph, weights, inputs, config)
    of_windows = rotation_of_windows(graph, weights, inputs, rotation)
    for i in range(config.blocks):
        block = f"blk.{i}"
        h = norm(x, f"{block}.attn_norm")
        q, k, v = (project(graph, weights, f"{block}.attn_{name}", h) for name in "qkv")
        q = heads_normed(q, f"{block}.attn_q_norm", config.heads)
        k = heads_normed(k, f"{block}.attn_k_norm", config.kv_heads)
        turn = of_windows if i in config.windowed else rotation
        q, k = turned(graph, "rope_neox", block, q, k, turn, config)
        attended = attend(graph, block, q, k, v, weights, inputs, caches, config)
        attended = norm(attended, f"{block}.post_attention_norm")
        x = graph("add", f"{block}.attn_residual", x=x, y=attended)
        h = norm(x, f"{block}.ffn_norm")
        fed = feed_forward.feed_forward(graph, i, h, weights, config)
        fed = norm(fed, f"{block}.post_ffw_norm")
        x = graph("add", f"{block}.ffn_residual", x=x, y=fed)
    x = graph("embedding", "rows", tokens=inputs.rows, weight=x.as_weight())
    logits = logits_of(graph, weights, norm(x, "output_norm"))
    if config.logit_cap:
        logits = graph("softcap", "softcap", x=logits, cap=config.logit_cap)
    return graph, logits
