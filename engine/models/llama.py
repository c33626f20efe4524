"""LLaMA (Touvron et al., arXiv 2302.13971; grouped queries: 2307.09288), dense.

Tensors by their GGUF names. A file may tie `output` to `token_embd` and may have attention biases.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.config import ModelConfig
from engine.graph import Graph, Value


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What the engine writes before each step (see reference/attention.py for lists and spans)."""

    tokens: Value
    positions: Value
    cells: Value
    spans: Value
    lists: Value
    cell_positions: Value
    rows: Value


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor the model needs, with its dimensions (rows, elements)."""
    hidden, ffn = config.hidden, config.ffn
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
            f"blk.{i}.ffn_gate.weight": (ffn, hidden),
            f"blk.{i}.ffn_up.weight": (ffn, hidden),
            f"blk.{i}.ffn_down.weight": (hidden, ffn),
        }
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

    def linear(x: Value, name: str) -> Value:
        out = graph("linear", name, x=x, weight=weights[f"{name}.weight"])
        bias = weights.get(f"{name}.bias")
        return graph("add_bias", f"{name}.bias", x=out, bias=bias) if bias else out

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
        q, k, v = (linear(h, f"{block}.attn_{name}") for name in "qkv")
        q = graph(
            "rope_norm", f"{block}.q_rope", x=q.view(tokens, heads, head_dim), rotation=rotation
        )
        k = graph(
            "rope_norm", f"{block}.k_rope", x=k.view(tokens, kv_heads, head_dim), rotation=rotation
        )
        k_cache, v_cache = caches[f"{block}.k_cache"], caches[f"{block}.v_cache"]
        for cache, new in ((k_cache, k), (v_cache, v)):
            graph(
                "kv_write",
                f"{cache.name}_write",
                out=cache,
                x=new.view(tokens, kv_heads * head_dim),
                cells=inputs.cells,
                before=cache,
            )
        attended = graph(
            "attention",
            f"{block}.attention",
            q=q,
            k=k_cache,
            v=v_cache,
            lists=inputs.lists,
            spans=inputs.spans,
            positions=inputs.positions,
            cell_positions=inputs.cell_positions,
            slopes=weights["attention.slopes"],
            scale=head_dim**-0.5,
            softcap=0.0,
        )
        attended = linear(attended.view(tokens, heads * head_dim), f"{block}.attn_output")
        x = graph("add", f"{block}.attn_residual", x=x, y=attended)
        h = norm(x, f"{block}.ffn_norm")
        gate, up = linear(h, f"{block}.ffn_gate"), linear(h, f"{block}.ffn_up")
        gated = graph("swiglu", f"{block}.swiglu", gate=gate, up=up)
        x = graph("add", f"{block}.ffn_residual", x=x, y=linear(gated, f"{block}.ffn_down"))
    x = graph("embedding", "rows", tokens=inputs.rows, weight=x.as_weight())
    output = "output" if "output.weight" in weights else "token_embd"
    logits = graph("linear", "logits", x=norm(x, "output_norm"), weight=weights[f"{output}.weight"])
    return graph, logits
