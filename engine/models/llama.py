"""LLaMA (Touvron et al., arXiv 2302.13971; grouped queries: 2307.09288), dense.

Tensors by their GGUF names. A file may tie `output` to `token_embd` and may have attention biases.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from engine.config import ModelConfig
from engine.graph import Graph, Value
from engine.models import feed_forward
from engine.models.layers import StepInputs, attend, project


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor the model needs, with its dimensions (rows, elements)."""
    hidden = config.hidden
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (config.vocab, hidden)}
    for i in range(config.blocks):
        tensors |= {
            f"blk.{i}.attn_norm.weight": (hidden,),
            f"blk.{i}.attn_q.weight": (q, hidden),
            f"blk.{i}.attn_k.weight": (kv, hidden),
            f"blk.{i}.attn_v.weight": (kv, hidden),
            f"blk.{i}.attn_output.weight": (hidden, q),
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


def constants(config: ModelConfig, divisors: np.ndarray[Any, Any] | None) -> dict[str, Any]:
    """Arrays that are neither in the file nor computed by a node."""
    frequencies, _ = config.rope(divisors)
    return {
        "rope.frequencies": frequencies,
        "attention.slopes": np.zeros(config.heads, np.float32),  # no ALiBi in this family
    }


def build(
    config: ModelConfig,
    weights: Mapping[str, Value],
    inputs: StepInputs,
    caches: Mapping[str, Value],
) -> tuple[Graph, Value]:
    """The nodes of one step and its logits [outputs, vocab]."""
    graph = Graph()
    heads, kv_heads, head_dim = config.heads, config.kv_heads, config.head_dim
    _, magnitude = config.rope(None)
    tokens = inputs.tokens.dims[0]

    def norm(x: Value, name: str) -> Value:
        return graph("rms_norm", name, x=x, weight=weights[f"{name}.weight"], eps=config.norm_eps)

    x = graph("embedding", "token_embd", tokens=inputs.tokens, weight=weights["token_embd.weight"])
    rotation = graph(
        "rotation",
        "rotation",
        positions=inputs.positions,
        frequencies=weights["rope.frequencies"],
        magnitude=magnitude,
    )
    for i in range(config.blocks):
        block = f"blk.{i}"
        h = norm(x, f"{block}.attn_norm")
        q, k, v = (project(graph, weights, f"{block}.attn_{name}", h) for name in "qkv")
        q = graph(
            "rope_norm", f"{block}.q_rope", x=q.view(tokens, heads, head_dim), rotation=rotation
        )
        k = graph(
            "rope_norm", f"{block}.k_rope", x=k.view(tokens, kv_heads, head_dim), rotation=rotation
        )
        attended = attend(graph, block, q, k, v, weights, inputs, caches, config)
        attended = project(graph, weights, f"{block}.attn_output", attended)
        x = graph("add", f"{block}.attn_residual", x=x, y=attended)
        h = norm(x, f"{block}.ffn_norm")
        fed = feed_forward.feed_forward(graph, i, h, x, weights, config)
        x = graph("add", f"{block}.ffn_residual", x=x, y=fed)
    x = graph("embedding", "rows", tokens=inputs.rows, weight=x.as_weight())
    output = "output" if "output.weight" in weights else "token_embd"
    logits = graph("linear", "logits", x=norm(x, "output_norm"), weight=weights[f"{output}.weight"])
    return graph, logits
