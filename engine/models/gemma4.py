"""Gemma 4 (Google DeepMind, 2026), of text alone.

Gemma 3, but for this: blocks that see the whole context have heads of their own sizes, of which
rope turns a part; values are normalised, too, and may be keys as they were before their norm; the
last blocks read the keys and values of an earlier one of their kind; scores are not scaled; a token
has an embedding of every block's own, which a gate lets in behind the network; and what a block
gives is multiplied. Where there are experts, they stand beside each block's network: either has
norms of its own before it and behind it, and a router reads what both read, normed once more.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from engine.config import ModelConfig
from engine.graph import Graph, Value
from engine.models import experts, feed_forward, layers
from engine.models.family import Family, Rows, Shaped
from engine.models.layers import (
    StepInputs,
    attend,
    logits_of,
    no_slopes,
    project,
    rotation_of,
    rotation_of_windows,
    turned,
)
from reference import rope_frequencies

ONES = "values_norm.weight"
OWN = "per_layer_token_embd.rows"


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor the model needs, with its dimensions (rows, elements)."""
    hidden, each = config.hidden, config.per_layer
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (config.vocab, hidden)}
    if each:
        tensors |= {
            "per_layer_token_embd.weight": (config.vocab, config.blocks * each),
            "per_layer_model_proj.weight": (config.blocks * each, hidden),
            "per_layer_proj_norm.weight": (each,),
        }
    for i in range(config.blocks):
        block, own = f"blk.{i}", config.of_block(i)
        width, kv = own.heads * own.head_dim, own.kv_heads * own.head_dim
        tensors |= {
            f"{block}.attn_norm.weight": (hidden,),
            f"{block}.attn_q.weight": (width, hidden),
            f"{block}.attn_q_norm.weight": (own.head_dim,),
            f"{block}.attn_output.weight": (hidden, width),
            f"{block}.post_attention_norm.weight": (hidden,),
            f"{block}.ffn_norm.weight": (hidden,),
            f"{block}.post_ffw_norm.weight": (hidden,),
        } | feed_forward.expected_tensors(replace(own, experts=None), i)
        if own.experts:
            tensors |= {
                **experts.expected_tensors(own, own.experts, i),
                f"{block}.ffn_gate_inp.scale": (hidden,),
                f"{block}.pre_ffw_norm_2.weight": (hidden,),
                f"{block}.post_ffw_norm_1.weight": (hidden,),
                f"{block}.post_ffw_norm_2.weight": (hidden,),
            }
        if config.kept(i) == i:
            tensors[f"{block}.attn_k.weight"] = (kv, hidden)
            tensors[f"{block}.attn_k_norm.weight"] = (own.head_dim,)
        if each:
            tensors |= {
                f"{block}.inp_gate.weight": (each, hidden),
                f"{block}.proj.weight": (hidden, each),
                f"{block}.post_norm.weight": (hidden,),
            }
    return tensors | {"output_norm.weight": (hidden,)}


def optional_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Tensors a file may have."""
    tensors = layers.optional_tensors(config)
    for i in range(config.blocks):
        own = config.of_block(i)
        tensors[f"blk.{i}.layer_output_scale.weight"] = (1,)
        if config.kept(i) == i:
            tensors[f"blk.{i}.attn_v.weight"] = (own.kv_heads * own.head_dim, config.hidden)
        if own.experts:
            tensors[f"blk.{i}.ffn_down_exps.scale"] = (own.experts.count,)
    return tensors


def parts(config: ModelConfig) -> dict[str, Rows | Shaped]:
    """Of the embeddings that are blocks' own: a row for every token and block; and of what makes
    them of the hidden state, the rows of each block."""
    each, count = config.per_layer, config.blocks
    if not each:
        return {}
    return {
        OWN: Shaped("per_layer_token_embd.weight", (config.vocab * count, each)),
        **{
            f"own.{i}.weight": Rows("per_layer_model_proj.weight", i * each, each)
            for i in range(count)
        },
    }


def constants(config: ModelConfig, divisors: np.ndarray[Any, Any] | None) -> dict[str, Any]:
    """Arrays that are neither in the file nor computed by a node."""
    of_windows = {size.head_dim for i, size in enumerate(config.sizes) if i in config.windowed}
    found = {"rope.frequencies": config.rope(divisors)[0]} | no_slopes(config)
    for size in of_windows:
        found["rope.frequencies.windows"] = rope_frequencies.plain(size, config.window_base)
    ones = {f"{ONES}.{s.head_dim}": np.ones(s.head_dim, np.float32) for s in config.sizes}
    return found | ones


def build(
    config: ModelConfig,
    weights: Mapping[str, Value],
    inputs: StepInputs,
    caches: Mapping[str, Value],
) -> tuple[Graph, Value]:
    """The nodes of one step and its logits [outputs, vocab]."""
    graph, tokens = Graph(), inputs.tokens.dims[0]

    def norm(x: Value, name: str, weight: str = "") -> Value:
        own = weights[weight or f"{name}.weight"]
        return graph("rms_norm", name, x=x, weight=own, eps=config.norm_eps)

    x = graph("embedding", "token_embd", tokens=inputs.tokens, weight=weights["token_embd.weight"])
    x = graph("scale", "embd", x=x, factor=config.hidden**0.5)
    rotation = rotation_of(graph, weights, inputs, config)
    of_windows = rotation_of_windows(graph, weights, inputs, rotation)
    own_inputs = [own_input(graph, i, x, weights, inputs, config) for i in blocks_of(config)]
    for i in range(config.blocks):
        block, own, kept = f"blk.{i}", config.of_block(i), f"blk.{config.kept(i)}"
        turn = of_windows if i in config.windowed else rotation
        h = norm(x, f"{block}.attn_norm")
        q = project(graph, weights, f"{block}.attn_q", h)
        q = norm(q.view(f"{tokens}*{own.heads}", own.head_dim), f"{block}.attn_q_norm")
        k = v = None
        if kept == block:
            rows = f"{tokens}*{own.kv_heads}", own.head_dim
            k = v = project(graph, weights, f"{block}.attn_k", h)
            if f"{block}.attn_v.weight" in weights:
                v = project(graph, weights, f"{block}.attn_v", h)
            k = norm(k.view(*rows), f"{block}.attn_k_norm")
            v = norm(v.view(*rows), f"{block}.attn_v_norm", f"{ONES}.{own.head_dim}")
            q, k = turned(graph, "rope_neox", block, q, k, turn, own)
        else:
            q = q.view(tokens, own.heads, own.head_dim)
            q = graph("rope_neox", f"{block}.q_rope", x=q, rotation=turn)
        there = {f"{block}.{n}_cache": caches[f"{kept}.{n}_cache"] for n in "kv"}
        attended = attend(graph, block, q, k, v, weights, inputs, there, own)
        attended = norm(attended, f"{block}.post_attention_norm")
        x = graph("add", f"{block}.attn_residual", x=x, y=attended)
        h = norm(x, f"{block}.ffn_norm")
        fed = feed_forward.feed_forward(graph, i, h, weights, replace(own, experts=None))
        if own.experts:
            fed = norm(fed, f"{block}.post_ffw_norm_1")
            routed = norm(x, f"{block}.router_norm", f"{block}.ffn_gate_inp.scale")
            routed = graph("scale", f"{block}.router_scaled", x=routed, factor=config.hidden**-0.5)
            h = norm(x, f"{block}.pre_ffw_norm_2")
            some = experts.mixture(graph, i, h, weights, own, own.experts, routed)
            some = norm(some, f"{block}.post_ffw_norm_2")
            fed = graph("add", f"{block}.both", x=fed, y=some)
        fed = norm(fed, f"{block}.post_ffw_norm")
        x = graph("add", f"{block}.ffn_residual", x=x, y=fed)
        if own_inputs:
            gate = project(graph, weights, f"{block}.inp_gate", x)
            let_in = graph("geglu", f"{block}.let_in", gate=gate, up=own_inputs[i])
            let_in = norm(project(graph, weights, f"{block}.proj", let_in), f"{block}.post_norm")
            x = graph("add", f"{block}.own_residual", x=x, y=let_in)
        if scale := weights.get(f"{block}.layer_output_scale.weight"):
            x = graph("mul_columns", f"{block}.scaled", x=x, factors=scale)
    x = graph("embedding", "rows", tokens=inputs.rows, weight=x.as_weight())
    logits = logits_of(graph, weights, norm(x, "output_norm"))
    if config.logit_cap:
        logits = graph("softcap", "softcap", x=logits, cap=config.logit_cap)
    return graph, logits


def blocks_of(config: ModelConfig) -> range:
    """Those for which tokens have embeddings of their own."""
    return range(config.blocks if config.per_layer else 0)


def own_input(
    graph: Graph,
    i: int,
    x: Value,
    weights: Mapping[str, Value],
    inputs: StepInputs,
    config: ModelConfig,
) -> Value:
    """What block i lets in: (norm(M_i x / sqrt(hidden)) + sqrt(per_layer) E_i) / sqrt(2), of the
    scaled embedding x [tokens hidden] -> [tokens per_layer]."""
    made = project(graph, weights, f"own.{i}", x)
    made = graph("scale", f"own.{i}.scaled", x=made, factor=config.hidden**-0.5)
    weight = weights["per_layer_proj_norm.weight"]
    made = graph("rms_norm", f"own.{i}.norm", x=made, weight=weight, eps=config.norm_eps)
    own = graph("embedding", f"own.{i}.embd", tokens=inputs.of_blocks[i], weight=weights[OWN])
    own = graph("scale", f"own.{i}.embd_scaled", x=own, factor=config.per_layer**0.5)
    both = graph("add", f"own.{i}.both", x=made, y=own)
    return graph("scale", f"own.{i}.input", x=both, factor=2**-0.5)


FAMILY = Family(expected_tensors, build, optional_tensors, parts, constants)
