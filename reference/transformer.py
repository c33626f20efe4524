"""A whole LLaMA forward pass (Touvron et al., arXiv 2302.13971), written in reference ops alone;
one whose feed-forward networks skip neurons (PowerInfer, arXiv 2312.12456)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from reference.activations import relu
from reference.arithmetic import add, add_bias
from reference.attention import attention
from reference.embedding import embedding
from reference.formats import FORMATS
from reference.gated_activations import reglu, swiglu
from reference.linear import linear
from reference.neuron_masks import active_rows, threshold_mask, union_mask, where_active
from reference.quantise_activations import dequantise_activations, quantise_activations
from reference.rms_norm import rms_norm
from reference.rope import rope_norm, rotation
from reference.sparse_axpy import sparse_axpy

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight matrix as a file holds it: uint8 [rows, row_bytes] in a format."""

    data: Array
    format: str


@dataclass(frozen=True, slots=True)
class Neurons:
    """Of networks whose gate is relu and whose down is transposed, those that run: with a logit of
    the block's predictor that reaches `threshold` (None: all), for the token itself or, by `union`,
    for any other."""

    threshold: float | None
    union: bool = False


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes and constants that the formula needs; without `neurons` the gate is silu."""

    blocks: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    frequencies: Array
    magnitude: float = 1.0
    neurons: Neurons | None = None


def transformer(
    tokens: Array,
    weights: Mapping[str, Weight],
    norms: Mapping[str, Array],
    shape: Shape,
    linear: Callable[[Array, Array, str], Array] = linear,
) -> Array:
    """Logits of every token of one sequence that starts at position 0.

    tokens int32 [tokens]; weights and norms (and biases) by their GGUF names; `output.weight` may
    be absent, which ties it to the embedding. `linear` may be `linear_of_quantised`.
    -> float64 [tokens, vocab].
    """
    count = len(tokens)
    positions = np.arange(count, dtype=np.int32)
    turn = rotation(positions, shape.frequencies, shape.magnitude)

    def project(x: Array, name: str) -> Array:
        return projected(x, name, weights, norms, linear)

    def normed(x: Array, name: str) -> Array:
        return rms_norm(x, norms[f"{name}.weight"], shape.norm_eps)

    table = weights["token_embd.weight"]
    x = embedding(tokens, table.data, table.format)
    for i in range(shape.blocks):
        block = f"blk.{i}"
        h = normed(x, f"{block}.attn_norm")
        q = project(h, f"{block}.attn_q").reshape(count, shape.heads, shape.head_dim)
        k = project(h, f"{block}.attn_k").reshape(count, shape.kv_heads, shape.head_dim)
        v = project(h, f"{block}.attn_v")
        attended = causal(rope_norm(q, turn), rope_norm(k, turn), v, positions)
        attended = attended.reshape(count, shape.heads * shape.head_dim)
        x = add(x, project(attended, f"{block}.attn_output"))
        h = normed(x, f"{block}.ffn_norm")
        gate, up = project(h, f"{block}.ffn_gate"), project(h, f"{block}.ffn_up")
        if shape.neurons is None:
            x = add(x, project(swiglu(gate, up), f"{block}.ffn_down"))
            continue
        mask = np.ones(gate.shape, np.uint8)
        if shape.neurons.threshold is not None:
            logits = project(relu(project(x, f"{block}.fc1")), f"{block}.fc2")
            mask = active(logits, shape.neurons)
        fired = reglu(where_active(gate, mask), where_active(up, mask))
        x = add(x, transposed(fired, mask, weights[f"{block}.ffn_down_t.weight"]))
    output = "output" if "output.weight" in weights else "token_embd"
    return project(normed(x, "output_norm"), output)


def active(logits: Array, neurons: Neurons) -> Array:
    """The mask uint8 [tokens, neurons] by a predictor's logits of the same shape."""
    assert neurons.threshold is not None
    mask = threshold_mask(logits, neurons.threshold)
    return union_mask(mask) if neurons.union else mask


def transposed(fired: Array, mask: Array, weight: Weight) -> Array:
    """The sum of active neurons' rows: fired [tokens, neurons] -> [tokens, hidden]."""
    rows, count = active_rows(mask)
    slots = np.arange(len(weight.data))
    return sparse_axpy(fired, weight.data, rows, count, slots, weight.format)


def projected(
    x: Array,
    name: str,
    weights: Mapping[str, Weight],
    norms: Mapping[str, Array],
    linear: Callable[[Array, Array, str], Array],
) -> Array:
    """linear with NAME.weight, and NAME.bias where there is one."""
    weight = weights[f"{name}.weight"]
    out = linear(x, weight.data, weight.format)
    return add_bias(out, norms[f"{name}.bias"]) if f"{name}.bias" in norms else out


def linear_of_quantised(x: Array, weight: Array, format: str) -> Array:
    """What linear gives on activations that were quantised to int8 first."""
    q, scale, _ = quantise_activations(x)
    return linear(dequantise_activations(q, scale), weight, format)


def causal(q: Array, k: Array, v: Array, positions: Array) -> Array:
    """Attention of one sequence over itself, its cells in order; keys and values rounded to the
    float32 that a cache in F32 holds."""
    count, heads, head_dim = q.shape
    rows = FORMATS["F32"].quantise
    return attention(
        q,
        rows(k.reshape(count, -1).astype(np.float32)),
        rows(v.reshape(count, -1).astype(np.float32)),
        lists=positions[None, :],
        spans=np.stack([np.zeros_like(positions), np.zeros_like(positions), positions + 1], axis=1),
        positions=positions,
        cell_positions=positions,
        slopes=np.zeros(heads),
        scale=head_dim**-0.5,
        softcap=0.0,
        format="F32",
    )
