"""Tensors common to many families, by their names within a block, with dimensions (rows, elements);
and constants, arrays neither in the file nor computed by a node."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from engine.config import ModelConfig
from reference import rope_frequencies

Tensors = dict[str, tuple[int, ...]]
Constants = dict[str, np.ndarray[Any, Any]]


def with_biases(weights: Mapping[str, tuple[int, ...]]) -> Tensors:
    """Tensors NAME.weight by their dimensions, each with a NAME.bias of as many rows."""
    return {
        f"{name.removesuffix('weight')}{kind}": dims[:1] if kind == "bias" else dims
        for name, dims in weights.items()
        for kind in ("weight", "bias")
    }


def biases_of(weights: Mapping[str, tuple[int, ...]]) -> Tensors:
    """Only the biases of such tensors."""
    return {name: d for name, d in with_biases(weights).items() if name.endswith(".bias")}


def attention_tensors(config: ModelConfig) -> Tensors:
    """The weights of a block's attention."""
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    rows = {"qkv": q + 2 * kv} if config.fused_qkv else {"q": q, "k": kv, "v": kv}
    return {
        **{f"attn_{n}.weight": (count, config.hidden) for n, count in rows.items()},
        "attn_output.weight": (config.hidden, q),
    }


def qkv_biases(config: ModelConfig) -> Tensors:
    """The biases of queries, keys and values."""
    heads = {"q": config.heads, "k": config.kv_heads, "v": config.kv_heads}
    return {f"attn_{n}.bias": (count * config.head_dim,) for n, count in heads.items()}


def attention_biases(config: ModelConfig) -> Tensors:
    """The biases of queries, keys, values and the output."""
    return qkv_biases(config) | {"attn_output.bias": (config.hidden,)}


def qk_norms(config: ModelConfig) -> Tensors:
    """The norms of queries and of keys, common to all heads."""
    return {f"attn_{n}_norm.weight": (config.head_dim,) for n in "qk"}


def head_norms(config: ModelConfig) -> Tensors:
    """The layer norms of queries and keys, a row for each head."""
    heads = {"q": config.heads, "k": config.kv_heads}
    return {f"attn_{n}_norm.weight": (heads[n], config.head_dim) for n in heads}


def plain_norm(config: ModelConfig) -> Constants:
    """The constants of layer norms of heads."""
    size = config.head_dim
    return {
        "heads_norm.weight": np.ones(size, np.float32),
        "heads_norm.bias": np.zeros(size, np.float32),
    }


def no_bias(config: ModelConfig) -> Constants:
    """The constant for norms without a bias."""
    return {"layer_norm.no_bias": np.zeros(config.hidden, np.float32)}


def rope_constants(config: ModelConfig, divisors: np.ndarray[Any, Any] | None) -> Constants:
    """Constants of rotations and attention that no file has; see family.py for `divisors`."""
    found = {"rope.frequencies": config.rope(divisors)[0]} | no_slopes(config)
    if config.window_base:
        of_windows = rope_frequencies.plain(config.rope_dims, config.window_base)
        found["rope.frequencies.windows"] = of_windows
    return found


def no_slopes(config: ModelConfig) -> Constants:
    """No ALiBi and no sinks: constants of attention that no file has."""
    return {"attention.slopes": np.zeros(config.heads, np.float32)} | no_sinks(config)


def no_sinks(config: ModelConfig) -> Constants:
    """No sinks."""
    return {"attention.sinks": np.full(config.heads, -np.inf, np.float32)}
