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

from collections.abc import Mapping
from typing import Any

import numpy as np

from engine.config import ModelConfig
from engine.graph import Graph, Value
from engine.models import feed_forward, layers
from engine.models.family import Family, Rows, fused_qkv
from engine.models.layers import (
    StepInputs,
    attention,
    attention_tensors,
    biased,
    head_norms,
    layer_norm,
    logits_of,
    plain_norm,
    rope_constants,
    rotation_of,
    with_biases,
)

PLAIN = ("stablelm", "nemotron")  # projections need no biases


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor the model needs, with its dimensions (rows, elements)."""
    hidden, architecture = config.hidden, config.architecture
    stablelm, plain = architecture == "stablelm", architecture in PLAIN
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (config.vocab, hidden)}
    for i in range(config.blocks):
        attention = attention_tensors(config, i)
        tensors |= with_biases({f"blk.{i}.attn_norm.weight": (hidden,)})
        tensors |= attention if plain else with_biases(attention)
        if architecture != "phi2" and not (stablelm and config.parallel):
            tensors |= with_biases({f"blk.{i}.ffn_norm.weight": (hidden,)})
        tensors |= feed_forward.expected_tensors(config, i)
        if not plain:
            tensors |= feed_forward.biases(config, i)
    tensors |= with_biases({"output_norm.weight": (hidden,)})
    if architecture == "phi2":
        tensors |= with_biases({"output.weight": (config.vocab, hidden)})
    return tensors


def optional_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Tensors a file may have."""
    tensors = layers.optional_tensors(config)
    if config.architecture == "stablelm":
        for i in range(config.blocks):
            tensors |= with_biases({f"blk.{i}.ffn_norm.weight": (config.hidden,)})
            both = with_biases(attention_tensors(config, i))
            del both[f"blk.{i}.attn_output.bias"]
            tensors |= {name: dims for name, dims in both.items() if name.endswith("bias")}
            tensors |= head_norms(config, i)
    if config.architecture == "nemotron":
        for i in range(config.blocks):
            both = with_biases(attention_tensors(config, i))
            tensors |= {name: dims for name, dims in both.items() if name.endswith("bias")}
            tensors |= feed_forward.biases(config, i)
    return tensors


def parts(config: ModelConfig) -> dict[str, Rows]:
    """Queries, keys and values, where they are rows of one tensor."""
    return fused_qkv(config) if config.fused_qkv else {}


def constants(config: ModelConfig, divisors: np.ndarray[Any, Any] | None) -> dict[str, Any]:
    """Arrays that are neither in the file nor computed by a node."""
    return rope_constants(config, divisors) | plain_norm(config)


def build(
    config: ModelConfig,
    weights: Mapping[str, Value],
    inputs: StepInputs,
    caches: Mapping[str, Value],
) -> tuple[Graph, Value]:
    """The nodes of one step and its logits [outputs, vocab]."""
    graph = Graph()
    x = graph("embedding", "token_embd", tokens=inputs.tokens, weight=weights["token_embd.weight"])
    rotation = rotation_of(graph, weights, inputs, config)
    for i in range(config.blocks):
        block = f"blk.{i}"
        one_norm = f"{block}.ffn_norm.weight" not in weights
        h = layer_norm(graph, weights, f"{block}.attn_norm", x, config)
        attended = attention(graph, block, h, weights, inputs, caches, config, rotation)
        if one_norm or (config.architecture == "gptneox" and config.parallel):
            if not one_norm:
                h = layer_norm(graph, weights, f"{block}.ffn_norm", x, config)
            fed = feed_forward.feed_forward(graph, i, h, weights, config)
            both = graph("add", f"{block}.both", x=fed, y=attended)
            x = graph("add", f"{block}.residual", x=x, y=both)
        else:
            x = graph("add", f"{block}.attn_residual", x=x, y=attended)
            h = layer_norm(graph, weights, f"{block}.ffn_norm", x, config)
            fed = feed_forward.feed_forward(graph, i, h, weights, config)
            x = graph("add", f"{block}.ffn_residual", x=x, y=fed)
    x = graph("embedding", "rows", tokens=inputs.rows, weight=x.as_weight())
    x = layer_norm(graph, weights, "output_norm", x, config)
    return graph, biased(graph, weights, "output", logits_of(graph, weights, x))


FAMILY = Family(expected_tensors, build, optional_tensors, parts, constants)
