"""GPT-2 (Radford et al., 2019), BLOOM (Scao et al., arXiv 2211.05100) and MPT (MosaicML, 2023),
dense: attention, then the feed-forward network, each after a layer norm, and no rope.

gpt2    positions are learned
bloom   attention has linear biases of distance (ALiBi), the embedding a norm of its own
mpt     ALiBi; norms and projections may lack their biases

Queries, keys and values are rows of one tensor, in this order.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from engine.config import ModelConfig
from engine.graph import Graph, Value
from engine.models import feed_forward
from engine.models.blocks import logits_of_blocks
from engine.models.family import Family, Rows, fused_qkv
from engine.models.layers import (
    StepInputs,
    attention,
    attention_tensors,
    layer_norm,
    no_bias,
    no_sinks,
    with_biases,
)
from reference.attention.alibi import alibi_slopes


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor the model needs, with its dimensions (rows, elements)."""
    hidden = config.hidden
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (config.vocab, hidden)}
    if config.positions:
        tensors["position_embd.weight"] = (config.positions, hidden)
    if config.architecture == "bloom":
        tensors |= with_biases({"token_embd_norm.weight": (hidden,)})
    biases = {} if config.architecture == "mpt" else _biases(config)
    return tensors | _weights(config) | biases


def optional_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Tensors a file may have."""
    biases = _biases(config) if config.architecture == "mpt" else {}
    return {"output.weight": (config.vocab, config.hidden), **biases}


def _weights(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Those of the blocks and of the last norm."""
    tensors: dict[str, tuple[int, ...]] = {}
    for i in range(config.blocks):
        tensors |= {f"blk.{i}.attn_norm.weight": (config.hidden,)} | attention_tensors(config, i)
        tensors |= {f"blk.{i}.ffn_norm.weight": (config.hidden,)}
        tensors |= feed_forward.expected_tensors(config, i)
    return tensors | {"output_norm.weight": (config.hidden,)}


def _biases(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Those of the same."""
    tensors: dict[str, tuple[int, ...]] = {}
    for i in range(config.blocks):
        norms = {f"blk.{i}.{name}.weight": (config.hidden,) for name in ("attn_norm", "ffn_norm")}
        tensors |= with_biases({**norms, **attention_tensors(config, i)})
        tensors |= feed_forward.biases(config, i)
    tensors |= with_biases({"output_norm.weight": (config.hidden,)})
    return {name: dims for name, dims in tensors.items() if name.endswith(".bias")}


def parts(config: ModelConfig) -> dict[str, Rows]:
    """Queries, keys and values."""
    return fused_qkv(config)


def constants(config: ModelConfig, divisors: np.ndarray[Any, Any] | None) -> dict[str, Any]:
    """Arrays that are neither in the file nor computed by a node."""
    slopes = alibi_slopes(config.heads, config.alibi) if config.alibi else np.zeros(config.heads)
    found = {"attention.slopes": slopes.astype(np.float32)} | no_sinks(config)
    return found | no_bias(config) if config.architecture == "mpt" else found


def build(
    config: ModelConfig,
    weights: Mapping[str, Value],
    inputs: StepInputs,
    caches: Mapping[str, Value],
) -> tuple[Graph, Value]:
    """The nodes of one step and its logits [outputs, vocab]."""
    graph = Graph()
    x = graph("embedding", "token_embd", tokens=inputs.tokens, weight=weights["token_embd.weight"])
    if config.positions:
        table = weights["position_embd.weight"]
        where = graph("embedding", "position_embd", tokens=inputs.positions, weight=table)
        x = graph("add", "embd", x=x, y=where)
    if config.architecture == "bloom":
        x = layer_norm(graph, weights, "token_embd_norm", x, config)

    def mixed(i: int, h: Value) -> Value:
        return attention(graph, f"blk.{i}", h, weights, inputs, caches, config)

    return graph, logits_of_blocks(graph, x, mixed, weights, inputs, config, norm=layer_norm)


FAMILY = Family(expected_tensors, build, optional_tensors, parts, constants)
