"""OPT (Zhang et al., arXiv 2205.01068), dense, its norms before what they feed.

The architecture `opt` of GGUF is PowerInfer's. Every projection has a bias. Positions are learned:
their table begins with two rows that no position has, and the context length counts those, too.
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
    layer_norm,
    no_slopes,
    with_biases,
)
from reference.models.opt import UNUSED


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor the model needs, with its dimensions (rows, elements)."""
    hidden = config.hidden
    tensors: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (config.vocab, hidden),
        "position_embd.weight": (config.positions + UNUSED, hidden),
    }
    for i in range(config.blocks):
        norms = {f"blk.{i}.{name}.weight": (hidden,) for name in ("attn_norm", "ffn_norm")}
        tensors |= with_biases({**norms, **attention_tensors(config, i)})
        tensors |= feed_forward.expected_tensors(config, i)
        tensors |= feed_forward.biases(config, i)
    return tensors | with_biases({"output_norm.weight": (hidden,)})


def optional_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Tensors a file may have."""
    return {"output.weight": (config.vocab, config.hidden)}


def parts(config: ModelConfig) -> dict[str, Rows]:
    """The rows that positions have."""
    return {"position_embd.used": Rows("position_embd.weight", UNUSED, config.positions)}


def constants(config: ModelConfig, divisors: np.ndarray[Any, Any] | None) -> dict[str, Any]:
    """Arrays that are neither in the file nor computed by a node."""
    return no_slopes(config)


def build(
    config: ModelConfig,
    weights: Mapping[str, Value],
    inputs: StepInputs,
    caches: Mapping[str, Value],
) -> tuple[Graph, Value]:
    """The nodes of one step and its logits [outputs, vocab]."""
    graph = Graph()
    x = graph("embedding", "token_embd", tokens=inputs.tokens, weight=weights["token_embd.weight"])
    where = graph(
        "embedding",
        "position_embd",
        tokens=inputs.positions,
        weight=weights["position_embd.used"],
    )
    x = graph("add", "embd", x=x, y=where)

    def mixed(i: int, h: Value) -> Value:
        return attention(graph, f"blk.{i}", h, weights, inputs, caches, config)

    return graph, logits_of_blocks(graph, x, mixed, weights, inputs, config, norm=layer_norm)


FAMILY = Family(expected_tensors, build, optional_tensors, parts, constants)
