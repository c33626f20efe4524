"""GPT-2 (Radford et al., 2019), BLOOM (Scao et al., arXiv 2211.05100) and MPT (MosaicML, 2023),
dense: attention, then the feed-forward network, each after a layer norm, and no rope.

gpt2    positions are learned
bloom   attention has linear biases of distance (ALiBi), the embedding a norm of its own
mpt     ALiBi; norms and projections may lack their biases

Queries, keys and values are rows of one tensor, in this order.
"""

from typing import Any

import numpy as np

from engine.config import ModelConfig
from engine.graph import Value
from engine.models import feed_forward
from engine.models.blocks import logits_of_blocks
from engine.models.family import Family, fused_qkv, output
from engine.models.network import Network
from engine.models.tensors import (
    Constants,
    Tensors,
    attention_tensors,
    biases_of,
    no_bias,
    no_sinks,
    with_biases,
)
from reference.attention.alibi import alibi_slopes


def first(config: ModelConfig) -> Tensors:
    """What follows the embedding."""
    tensors: Tensors = {}
    if config.positions:
        tensors["position_embd.weight"] = (config.positions, config.hidden)
    if config.architecture == "bloom":
        tensors |= with_biases({"token_embd_norm.weight": (config.hidden,)})
    return tensors


def block(config: ModelConfig, i: int) -> Tensors:
    """What block i needs, with dimensions (rows, elements)."""
    norms = {f"{name}.weight": (config.hidden,) for name in ("attn_norm", "ffn_norm")}
    weights = {**norms, **attention_tensors(config), **feed_forward.tensors(config, i)}
    return weights if config.architecture == "mpt" else weights | _biases(config)


def _biases(config: ModelConfig) -> Tensors:
    """Those of a block."""
    norms = {f"{name}.weight": (config.hidden,) for name in ("attn_norm", "ffn_norm")}
    of_attention = biases_of({**norms, **attention_tensors(config)})
    return of_attention | feed_forward.biases(config)


def last(config: ModelConfig) -> Tensors:
    """What follows the blocks."""
    norm: Tensors = {"output_norm.weight": (config.hidden,)}
    return norm if config.architecture == "mpt" else with_biases(norm)


def optional_block(config: ModelConfig, i: int) -> Tensors:
    """What a file may have of a block."""
    return _biases(config) if config.architecture == "mpt" else {}


def optional(config: ModelConfig) -> Tensors:
    """What a file may have beside the blocks."""
    return output(config) | (biases_of(last(config)) if config.architecture == "mpt" else {})


def constants(config: ModelConfig, divisors: np.ndarray[Any, Any] | None) -> Constants:
    """Slopes of ALiBi, and of norms that have no bias."""
    slopes = alibi_slopes(config.heads, config.alibi) if config.alibi else np.zeros(config.heads)
    found = {"attention.slopes": slopes.astype(np.float32)} | no_sinks(config)
    return found | no_bias(config) if config.architecture == "mpt" else found


def build(net: Network) -> Value:
    """The nodes of one step; its logits [outputs, vocab]."""
    x = net.embedded()
    if net.config.positions:
        table, positions = net.weights["position_embd.weight"], net.inputs.positions
        where = net.graph("embedding", "position_embd", tokens=positions, weight=table)
        x = net.add("embd", x, where)
    if net.config.architecture == "bloom":
        x = net.layer_norm("token_embd_norm", x)
    return logits_of_blocks(net, x, net.attention, net.layer_norm)


FAMILY = Family(
    block, build, optional_block, first=first, last=last, optional=optional,
    parts=fused_qkv, constants=constants,
)  # fmt: skip
