"""LFM 2 (Liquid AI, 2025), dense: most blocks are gated short convolutions, some attend.

A block projects its input to B, C and x, convolves B * x over the last few tokens, and gives C
times that, projected: no activation, and of the text before a state of two tokens. Blocks that
attend are Qwen 3's. Whether one does is told by its heads of keys in the file, 0 for a convolution.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from engine.config import ModelConfig
from engine.graph import Graph, Value
from engine.models import feed_forward
from engine.models.blocks import logits_of_blocks
from engine.models.family import Family, Rows
from engine.models.layers import (
    StepInputs,
    attention,
    attention_tensors,
    project,
    rope_constants,
    rotation_of,
)
from engine.models.mamba import routes, split


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor the model needs, with its dimensions (rows, elements)."""
    hidden = config.hidden
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (config.vocab, hidden)}
    for i in range(config.blocks):
        block = f"blk.{i}"
        tensors[f"{block}.attn_norm.weight"] = (hidden,)
        if config.attends(i):
            tensors |= attention_tensors(config, i)
            tensors |= {f"{block}.attn_{n}_norm.weight": (config.head_dim,) for n in "qk"}
        else:
            assert config.ssm
            tensors[f"{block}.shortconv.conv.weight"] = (hidden, config.ssm.taps)
            tensors[f"{block}.shortconv.in_proj.weight"] = (3 * hidden, hidden)
            tensors[f"{block}.shortconv.out_proj.weight"] = (hidden, hidden)
        tensors[f"{block}.ffn_norm.weight"] = (hidden,)
        tensors |= feed_forward.expected_tensors(config, i)
    return tensors | {"token_embd_norm.weight": (hidden,)}  # the last norm, whatever its name says


def parts(config: ModelConfig) -> dict[str, Rows]:
    """B, C and x of a convolution."""
    found: dict[str, Rows] = {}
    for i in sorted(config.recurrent):
        found |= split(f"blk.{i}.shortconv.in_proj", dict.fromkeys("bcx", config.hidden))
    return found


def constants(config: ModelConfig, divisors: np.ndarray[Any, Any] | None) -> dict[str, Any]:
    """Rope's, and a bias of no convolution."""
    no_bias = {"shortconv.no_bias": np.zeros(config.hidden, np.float32)}
    return rope_constants(config, divisors) | no_bias


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

    def mixed(i: int, h: Value) -> Value:
        block = f"blk.{i}"
        if not config.attends(i):
            return short_convolution(graph, block, h, weights, inputs, caches)
        return attention(graph, block, h, weights, inputs, caches, config, rotation)

    last = "token_embd_norm"
    return graph, logits_of_blocks(graph, x, mixed, weights, inputs, config, last=last)


def short_convolution(
    graph: Graph,
    block: str,
    h: Value,
    weights: Mapping[str, Value],
    inputs: StepInputs,
    caches: Mapping[str, Value],
) -> Value:
    """C * the convolution of B * x, projected [tokens hidden]."""
    conv, state = f"{block}.shortconv", caches[f"{block}.conv_state"]
    b, c, x = (project(graph, weights, f"{conv}.in_proj_{name}", h) for name in "bcx")
    convolved, _ = graph.several(
        "causal_conv1d",
        f"{conv}.conv",
        into={"states": state},
        x=graph("mul", f"{conv}.bx", x=b, y=x),
        weight=weights[f"{conv}.conv.weight"],
        bias=weights["shortconv.no_bias"],
        before=state,
        **routes(inputs),
    )
    return project(graph, weights, f"{conv}.out_proj", graph("mul", f"{conv}.y", x=c, y=convolved))


FAMILY = Family(expected_tensors, build, parts=parts, constants=constants)
