"""Gemma 4 (Google DeepMind, 2026), of text alone.

Gemma 3, but for this: blocks that see the whole context have heads of their own sizes, of which
rope turns a part; values are normalised, too, and may be keys as they were before their norm; the
last blocks read the keys and values of an earlier one of their kind; scores are not scaled; a token
has an embedding of every block's own, which a gate lets in behind the network; and what a block
gives is multiplied. Where there are experts, they stand beside each block's network: either has
norms of its own before it and behind it, and a router reads what both read, normed once more.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from engine.config import ModelConfig
from engine.graph import Value
from engine.models import experts, feed_forward
from engine.models.family import Family, Rows, Shaped
from engine.models.network import Network
from engine.models.tensors import Constants, Tensors, no_slopes
from reference import rope_frequencies

ONES = "values_norm.weight"
OWN = "per_layer_token_embd.rows"


def first(config: ModelConfig) -> Tensors:
    """What follows the embedding."""
    hidden, each = config.hidden, config.per_layer
    if not each:
        return {}
    return {
        "per_layer_token_embd.weight": (config.vocab, config.blocks * each),
        "per_layer_model_proj.weight": (config.blocks * each, hidden),
        "per_layer_proj_norm.weight": (each,),
    }


def block(config: ModelConfig, i: int) -> Tensors:
    """What block i needs, with dimensions (rows, elements)."""
    own, hidden, each = config.of_block(i), config.hidden, config.per_layer
    width, kv = own.heads * own.head_dim, own.kv_heads * own.head_dim
    tensors = {
        "attn_norm.weight": (hidden,),
        "attn_q.weight": (width, hidden),
        "attn_q_norm.weight": (own.head_dim,),
        "attn_output.weight": (hidden, width),
        "post_attention_norm.weight": (hidden,),
        "ffn_norm.weight": (hidden,),
        "post_ffw_norm.weight": (hidden,),
        **feed_forward.tensors(replace(own, experts=None), i),
    }
    if own.experts:
        tensors |= {
            **experts.tensors(own, own.experts),
            "ffn_gate_inp.scale": (hidden,),
            "pre_ffw_norm_2.weight": (hidden,),
            "post_ffw_norm_1.weight": (hidden,),
            "post_ffw_norm_2.weight": (hidden,),
        }
    if config.cache_block(i) == i:
        tensors |= {"attn_k.weight": (kv, hidden), "attn_k_norm.weight": (own.head_dim,)}
    if each:
        tensors |= {
            "inp_gate.weight": (each, hidden),
            "proj.weight": (hidden, each),
            "post_norm.weight": (hidden,),
        }
    return tensors


def optional_block(config: ModelConfig, i: int) -> Tensors:
    """What a file may have of a block."""
    own = config.of_block(i)
    tensors: Tensors = {"layer_output_scale.weight": (1,)}
    if config.cache_block(i) == i:
        tensors["attn_v.weight"] = (own.kv_heads * own.head_dim, config.hidden)
    if own.experts:
        tensors["ffn_down_exps.scale"] = (own.experts.count,)
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


def constants(config: ModelConfig, divisors: np.ndarray[Any, Any] | None) -> Constants:
    """Frequencies of blocks of either kind, and norms of values."""
    of_windows = {size.head_dim for i, size in enumerate(config.sizes) if i in config.windowed}
    found = {"rope.frequencies": config.rope(divisors)[0]} | no_slopes(config)
    for size in of_windows:
        found["rope.frequencies.windows"] = rope_frequencies.plain(size, config.window_base)
    ones = {f"{ONES}.{s.head_dim}": np.ones(s.head_dim, np.float32) for s in config.sizes}
    return found | ones


def build(net: Network) -> Value:
    """The nodes of one step; its logits [outputs, vocab]."""
    config = net.config
    x, rotation = net.embedded(config.hidden**0.5), net.rotation()
    of_windows = net.rotation_of_windows(rotation)
    own_inputs = [own_input(net, i, x) for i in range(config.blocks if config.per_layer else 0)]
    for i in range(config.blocks):
        name = f"blk.{i}"
        turn = of_windows if i in config.windowed else rotation
        attended = attention(net, i, net.rms_norm(f"{name}.attn_norm", x), turn)
        attended = net.rms_norm(f"{name}.post_attention_norm", attended)
        x = net.add(f"{name}.attn_residual", x, attended)
        fed = net.rms_norm(f"{name}.post_ffw_norm", networks(net, i, x))
        x = net.add(f"{name}.ffn_residual", x, fed)
        if own_inputs:
            gate = net.project(f"{name}.inp_gate", x)
            let_in = net.graph("geglu", f"{name}.let_in", gate=gate, up=own_inputs[i])
            let_in = net.rms_norm(f"{name}.post_norm", net.project(f"{name}.proj", let_in))
            x = net.add(f"{name}.own_residual", x, let_in)
        if scale := net.weights.get(f"{name}.layer_output_scale.weight"):
            x = net.graph("mul_columns", f"{name}.scaled", x=x, factors=scale)
    return net.capped(net.logits(net.rms_norm("output_norm", net.wanted(x))))


def attention(net: Network, i: int, h: Value, turn: Value) -> Value:
    """Block i's attention of h [tokens hidden], to its own keys and values or an earlier block's.
    -> [tokens hidden]."""
    attn, kept, tokens = (
        f"blk.{i}.attn",
        f"blk.{net.config.cache_block(i)}",
        net.inputs.tokens.dims[0],
    )
    there = {f"blk.{i}.{part}_cache": net.caches[f"{kept}.{part}_cache"] for part in "kv"}
    net = replace(net, config=net.config.of_block(i), caches=there)
    own = net.config
    q = net.project(f"{attn}_q", h).view(f"{tokens}*{own.heads}", own.head_dim)
    q = net.rms_norm(f"{attn}_q_norm", q)
    if kept != f"blk.{i}":
        q = q.view(tokens, own.heads, own.head_dim)
        q = net.graph("rope_neox", f"blk.{i}.q_rope", x=q, rotation=turn)
        return net.attend(i, q, None, None)
    rows = f"{tokens}*{own.kv_heads}", own.head_dim
    k = v = net.project(f"{attn}_k", h)
    if f"{attn}_v.weight" in net.weights:
        v = net.project(f"{attn}_v", h)
    k = net.rms_norm(f"{attn}_k_norm", k.view(*rows))
    v = net.rms_norm(f"{attn}_v_norm", v.view(*rows), net.weights[f"{ONES}.{own.head_dim}"])
    q, k = net.turned("rope_neox", i, q, k, turn)
    return net.attend(i, q, k, v)


def networks(net: Network, i: int, x: Value) -> Value:
    """The output of block i's network and of its experts, in parallel, for x [tokens hidden]."""
    name, config = f"blk.{i}", net.config
    own = config.of_block(i)
    alone = replace(net, config=replace(own, experts=None))
    fed = feed_forward.feed_forward(alone, i, net.rms_norm(f"{name}.ffn_norm", x))
    if not own.experts:
        return fed
    fed = net.rms_norm(f"{name}.post_ffw_norm_1", fed)
    routed = net.rms_norm(f"{name}.router_norm", x, net.weights[f"{name}.ffn_gate_inp.scale"])
    routed = net.scaled(f"{name}.router_scaled", routed, config.hidden**-0.5)
    h = net.rms_norm(f"{name}.pre_ffw_norm_2", x)
    some = experts.mixture(replace(net, config=own), i, h, own.experts, routed)
    return net.add(f"{name}.both", fed, net.rms_norm(f"{name}.post_ffw_norm_2", some))


def own_input(net: Network, i: int, x: Value) -> Value:
    """Block i's per-layer input: (norm(M_i x / sqrt(hidden)) + sqrt(per_layer) E_i) / sqrt(2), of
    the scaled embedding x [tokens hidden] -> [tokens per_layer]."""
    name, config = f"own.{i}", net.config
    made = net.scaled(f"{name}.scaled", net.project(name, x), config.hidden**-0.5)
    made = net.rms_norm(f"{name}.norm", made, net.weights["per_layer_proj_norm.weight"])
    rows, table = net.inputs.of_blocks[i], net.weights[OWN]
    own = net.graph("embedding", f"{name}.embd", tokens=rows, weight=table)
    own = net.scaled(f"{name}.embd_scaled", own, config.per_layer**0.5)
    return net.scaled(f"{name}.input", net.add(f"{name}.both", made, own), 2**-0.5)


FAMILY = Family(block, build, optional_block, first, parts=parts, constants=constants)
