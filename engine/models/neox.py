"""GPT-NeoX (Black et al., arXiv 2204.06745; Pythia: 2304.01373), Phi 1 to 2 (Li et al., arXiv
2309.05463), StarCoder 2 (Lozhkov et al., arXiv 2402.19173), StableLM (Bellagente et al., arXiv
2402.17834) and Nemotron (Parmar et al., arXiv 2402.16819), dense: layer norms with biases, and rope
that turns a part of each head, by halves.

gptneox      attention and the feed-forward network side by side, each after a norm of its own, or
             one after the other
phi2         side by side, after one norm; logits have a bias
starcoder2   one after the other
stablelm     one after the other, or side by side after one norm where there is no `ffn_norm`,
             whatever the file's key says; the network has a gate, projections have no biases but
             for those that queries, keys and values may have, and each head of queries and keys
             may have a norm without one
nemotron     one after the other; projections may have biases

Queries, keys and values may be rows of one tensor, in this order.
"""

from typing import Any

import numpy as np

from engine.config import ModelConfig
from engine.graph import Value
from engine.models import feed_forward
from engine.models.blocks import parallel_residual
from engine.models.family import Family, Rows, fused_qkv
from engine.models.network import Network
from engine.models.tensors import (
    Constants,
    Tensors,
    attention_tensors,
    biases_of,
    head_norms,
    plain_norm,
    rope_constants,
    with_biases,
)

PLAIN = ("stablelm", "nemotron")  # projections need no biases


def block(config: ModelConfig, i: int) -> Tensors:
    """What block i needs, with dimensions (rows, elements)."""
    hidden, architecture = config.hidden, config.architecture
    stablelm, plain = architecture == "stablelm", architecture in PLAIN
    attention = attention_tensors(config)
    tensors = with_biases({"attn_norm.weight": (hidden,)})
    tensors |= attention if plain else with_biases(attention)
    if architecture != "phi2" and not (stablelm and config.parallel):
        tensors |= with_biases({"ffn_norm.weight": (hidden,)})
    tensors |= feed_forward.tensors(config, i)
    return tensors if plain else tensors | feed_forward.biases(config)


def optional_block(config: ModelConfig, i: int) -> Tensors:
    """What a file may have of a block."""
    attention = attention_tensors(config)
    if config.architecture == "stablelm":
        del attention["attn_output.weight"]
        norm = with_biases({"ffn_norm.weight": (config.hidden,)})
        return norm | biases_of(attention) | head_norms(config)
    if config.architecture == "nemotron":
        return biases_of(attention) | feed_forward.biases(config)
    return {}


def last(config: ModelConfig) -> Tensors:
    """What follows the blocks."""
    tensors: Tensors = {"output_norm.weight": (config.hidden,)}
    if config.architecture == "phi2":
        tensors["output.weight"] = (config.vocab, config.hidden)
    return with_biases(tensors)


def parts(config: ModelConfig) -> dict[str, Rows]:
    """Queries, keys and values, where they are rows of one tensor."""
    return fused_qkv(config) if config.fused_qkv else {}


def constants(config: ModelConfig, divisors: np.ndarray[Any, Any] | None) -> Constants:
    """Rope's, and those of norms of heads."""
    return rope_constants(config, divisors) | plain_norm(config)


def build(net: Network) -> Value:
    """The nodes of one step; its logits [outputs, vocab]."""
    x, rotation, config = net.embedded(), net.rotation(), net.config
    for i in range(config.blocks):
        name = f"blk.{i}"
        one_norm = f"{name}.ffn_norm.weight" not in net.weights
        h = net.layer_norm(f"{name}.attn_norm", x)
        attended = net.attention(i, h, rotation)
        if one_norm or (config.architecture == "gptneox" and config.parallel):
            if not one_norm:
                h = net.layer_norm(f"{name}.ffn_norm", x)
            x = parallel_residual(net, i, x, attended, h)
        else:
            x = net.add(f"{name}.attn_residual", x, attended)
            h = net.layer_norm(f"{name}.ffn_norm", x)
            x = net.add(f"{name}.ffn_residual", x, feed_forward.feed_forward(net, i, h))
    return net.biased("output", net.logits(net.layer_norm("output_norm", net.wanted(x))))


FAMILY = Family(block, build, optional_block, last=last, parts=parts, constants=constants)
