"""The LLaMA forward pass (Touvron et al., arXiv 2302.13971) in reference ops, and its sparse form
with predicted active neurons (PowerInfer, arXiv 2312.12456)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reference.activations import relu, squared_relu
from reference.arithmetic import add, add_bias, scale
from reference.attention.attention import attention
from reference.embedding import embedding
from reference.formats import FORMATS
from reference.gated_activations import reglu, swiglu
from reference.layer_norm import layer_norm
from reference.linear import linear
from reference.models.mixers import mamba2
from reference.models.mixture import Mixture, mixture
from reference.rms_norm import rms_norm
from reference.rope import rope_norm, rotation
from reference.sparse.neuron_masks import active_rows, threshold_mask, union_mask, where_active
from reference.sparse.sparse_axpy import sparse_axpy

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight matrix as stored in a file: uint8 [rows, row_bytes] in a format."""

    data: Array
    format: str


@dataclass(frozen=True, slots=True)
class Neurons:
    """Activation sparsity of networks with a ReLU gate and a transposed down matrix: neurons are
    active if their predictor's logit reaches `threshold` (None: all are), for the token itself or,
    with `union`, for any token of the batch."""

    threshold: float | None
    union: bool = False


@dataclass(frozen=True, slots=True)
class Scales:
    """Factors of the embedding, of the output of each half of a block, of q k^T (None: 1 /
    sqrt(head_dim)), and of the logits."""

    embedding: float = 1.0
    residual: float = 1.0
    attention: float | None = None
    logits: float = 1.0


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes and constants of a model; without `neurons` the activation is SiLU, or squared ReLU
    where there are no gates (Arcee). Every `no_rope`-th block has no RoPE, unless that is 0. With
    `mixture`, networks are mixtures of experts. Queries have a `temperature` by `length`
    (reference/rope.py)."""

    blocks: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    frequencies: Array
    magnitude: float = 1.0
    neurons: Neurons | None = None
    no_rope: int = 0
    scales: Scales = Scales()
    mixture: Mixture | None = None
    temperature: float = 0.0
    length: int = 1


def transformer(
    tokens: Array,
    weights: Mapping[str, Weight],
    norms: Mapping[str, Array],
    shape: Shape,
    linear: Callable[[Array, Array, str], Array] = linear,
    attend: Callable[[int, Array, Array, Array], Array] | None = None,
) -> Array:
    """Logits of every token of one sequence that starts at position 0.

    tokens int32 [tokens]; weights and norms (and biases) by their GGUF names; without
    `output.weight` the output is tied to the embedding. `linear` may be `linear_of_quantised`, and
    `attend` replaces causal attention of block i over its q, k and v.
    -> float64 [tokens, vocab].
    """
    count = len(tokens)
    positions = np.arange(count, dtype=np.int32)
    turn = rotation(positions, shape.frequencies, shape.magnitude)
    tuned = rotation(positions, shape.frequencies, shape.magnitude, shape.temperature, shape.length)

    def project(x: Array, name: str) -> Array:
        return projected(x, name, weights, norms, linear)

    def normed(x: Array, name: str) -> Array:
        return rms_norm(x, norms[f"{name}.weight"], shape.norm_eps)

    def attended(i: int, h: Array) -> Array:
        block = f"blk.{i}"
        q = project(h, f"{block}.attn_q").reshape(count, shape.heads, shape.head_dim)
        k = project(h, f"{block}.attn_k").reshape(count, shape.kv_heads, shape.head_dim)
        v = project(h, f"{block}.attn_v")
        if not shape.no_rope or (i + 1) % shape.no_rope:
            q, k = rope_norm(q, tuned), rope_norm(k, turn)
        if attend:
            return attend(i, q, k, v).reshape(count, shape.heads * shape.head_dim)
        return causal(q, k, v, positions, shape.scales.attention).reshape(count, -1)

    table = weights["token_embd.weight"]
    x = scale(embedding(tokens, table.data, table.format), shape.scales.embedding)
    for i in range(shape.blocks):
        block = f"blk.{i}"
        h = normed(x, f"{block}.attn_norm")
        if f"{block}.ssm_in.weight" in weights:  # Granite 4
            mixed = mamba2(h, block, norms, project, shape.norm_eps)
        else:
            mixed = project(attended(i, h), f"{block}.attn_output")
        x = add(x, scale(mixed, shape.scales.residual))
        h = normed(x, f"{block}.ffn_norm")
        if shape.mixture and f"{block}.ffn_gate.weight" not in weights:
            fed = mixture(h, block, weights, norms, shape.mixture, project, linear)
            x = add(x, scale(fed, shape.scales.residual))
            continue
        up = project(h, f"{block}.ffn_up")
        if f"{block}.ffn_gate.weight" not in weights:
            x = add(x, project(squared_relu(up), f"{block}.ffn_down"))
            continue
        gate = project(h, f"{block}.ffn_gate")
        if shape.neurons is None:
            fed = project(swiglu(gate, up), f"{block}.ffn_down")
            x = add(x, scale(fed, shape.scales.residual))
            continue
        mask = np.ones(gate.shape, np.uint8)
        if shape.neurons.threshold is not None:
            logits = project(relu(project(x, f"{block}.fc1")), f"{block}.fc2")
            mask = active(logits, shape.neurons)
        fired = reglu(where_active(gate, mask), where_active(up, mask))
        x = add(x, transposed(fired, mask, weights[f"{block}.ffn_down_t.weight"]))
    output = "output" if "output.weight" in weights else "token_embd"
    return scale(project(normed(x, "output_norm"), output), shape.scales.logits)


def active(logits: Array, neurons: Neurons) -> Array:
    """The mask uint8 [tokens, neurons] for a predictor's logits of the same shape."""
    assert neurons.threshold is not None
    mask = threshold_mask(logits, neurons.threshold)
    return union_mask(mask) if neurons.union else mask


def transposed(fired: Array, mask: Array, weight: Weight) -> Array:
    """The sum of active neurons' rows: fired [tokens, neurons] -> [tokens, hidden]."""
    rows, count = active_rows(mask)
    slots = np.arange(len(weight.data))
    return sparse_axpy(fired, weight.data, rows, count, slots, weight.format)


def heads_normed(x: Array, name: str, norms: Mapping[str, Array], shape: Shape) -> Array:
    """LayerNorm by head, times the head's row of the tensor NAME.weight [heads, head_dim] (StableLM
    2 12B, Command R+); x if there is no such tensor.

    x [tokens, heads * head_dim] -> float64 [tokens, heads, head_dim].
    """
    rows, factors = x.reshape(len(x), -1, shape.head_dim), norms.get(f"{name}.weight")
    if factors is None:
        return rows
    one, zero = np.ones(shape.head_dim, np.float32), np.zeros(shape.head_dim, np.float32)
    normed = layer_norm(rows.reshape(-1, shape.head_dim), one, zero, shape.norm_eps)
    return normed.reshape(rows.shape) * factors.astype(np.float64)


def projected(
    x: Array,
    name: str,
    weights: Mapping[str, Weight],
    norms: Mapping[str, Array],
    linear: Callable[[Array, Array, str], Array],
) -> Array:
    """linear with NAME.weight, and NAME.bias if there is one."""
    weight = weights[f"{name}.weight"]
    out = linear(x, weight.data, weight.format)
    return add_bias(out, norms[f"{name}.bias"]) if f"{name}.bias" in norms else out


def split_fused(weights: Mapping[str, Weight], shape: Shape) -> dict[str, Weight]:
    """All weights, with fused ones split by rows: `attn_qkv` into queries, keys and values;
    `ffn_up`, if there is no gate, into gate and up."""
    found = dict(weights)

    def cut(block: str, joined: str, names: Sequence[str], counts: Sequence[int]) -> None:
        whole, ends = found.pop(f"{block}.{joined}.weight"), np.cumsum(counts)
        for name, end, count in zip(names, ends, counts, strict=True):
            found[f"{block}.{name}.weight"] = Weight(whole.data[end - count : end], whole.format)

    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for block in (f"blk.{i}" for i in range(shape.blocks)):
        if f"{block}.attn_qkv.weight" in found:
            cut(block, "attn_qkv", ("attn_q", "attn_k", "attn_v"), (q, kv, kv))
        if f"{block}.ffn_gate.weight" not in found and not shape.mixture:
            half = len(found[f"{block}.ffn_up.weight"].data) // 2
            cut(block, "ffn_up", ("ffn_gate", "ffn_up"), (half, half))
    return found


def causal(
    q: Array,
    k: Array,
    v: Array,
    positions: Array,
    scale: float | None = None,
    slopes: Array | None = None,
    softcap: float = 0.0,
    window: int = 0,
    sinks: Array | None = None,
) -> Array:
    """Causal attention over one sequence; keys and values are rounded to float32 as in an F32
    cache. `scale` None is 1 / sqrt(head_dim), `slopes` [heads] are ALiBi's, `sinks` [heads]
    gpt-oss's; with a `window` each token sees this many tokens, itself included."""
    count, heads, head_dim = q.shape
    rows = FORMATS["F32"].quantise
    begin = np.maximum(0, positions + 1 - window) if window else np.zeros_like(positions)
    return attention(
        q,
        rows(k.reshape(count, -1).astype(np.float32)),
        rows(v.reshape(count, -1).astype(np.float32)),
        lists=positions[None, :],
        spans=np.stack([np.zeros_like(positions), begin, positions + 1], axis=1),
        positions=positions,
        cell_positions=positions,
        slopes=np.zeros(heads) if slopes is None else slopes,
        sinks=np.full(heads, -np.inf) if sinks is None else sinks,
        scale=scale or head_dim**-0.5,
        softcap=softcap,
        format="F32",
    )
