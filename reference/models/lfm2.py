"""The forward pass of LFM 2 (Liquid AI, 2025), in reference ops."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from reference.arithmetic import add, mul
from reference.embedding import embedding
from reference.gated_activations import swiglu
from reference.linear import linear
from reference.models.mixture import mixture
from reference.models.transformer import Shape, Weight, causal, projected
from reference.recurrent.causal_conv1d import causal_conv1d
from reference.rms_norm import rms_norm
from reference.rope import rope_neox, rotation

Array = np.ndarray[Any, np.dtype[Any]]


def lfm2(
    tokens: Array,
    weights: Mapping[str, Weight],
    norms: Mapping[str, Array],
    shape: Shape,
    linear: Callable[[Array, Array, str], Array] = linear,
) -> Array:
    """Logits of every token of one sequence that starts at position 0.

    A block with `attn_q` is attention, any other a gated short convolution; `norms` are all tensors
    that are not quantised. Arguments are those of `transformer`. -> float64 [tokens, vocab].
    """
    count = len(tokens)
    positions = np.arange(count, dtype=np.int32)
    turn = rotation(positions, shape.frequencies, shape.magnitude)

    def project(x: Array, name: str) -> Array:
        return projected(x, name, weights, norms, linear)

    def normed(x: Array, name: str) -> Array:
        return rms_norm(x, norms[f"{name}.weight"], shape.norm_eps)

    def turned(h: Array, name: str, heads: int) -> Array:
        rows = project(h, name).reshape(count, heads, shape.head_dim)
        return rope_neox(normed(rows, f"{name}_norm"), turn)

    def attended(h: Array, block: str) -> Array:
        q = turned(h, f"{block}.attn_q", shape.heads)
        k = turned(h, f"{block}.attn_k", shape.kv_heads)
        found = causal(q, k, project(h, f"{block}.attn_v"), positions)
        return project(found.reshape(count, -1), f"{block}.attn_output")

    def convolved(h: Array, conv: str) -> Array:
        b, c, x = np.split(project(h, f"{conv}.in_proj"), 3, axis=1)
        weight = norms[f"{conv}.conv.weight"].T
        before = np.zeros((1, len(weight) - 1, x.shape[1]))
        runs = np.where(positions, -1, 0), np.full(count, -1)  # one sequence, no state kept
        found, _ = causal_conv1d(mul(b, x), weight, np.zeros(x.shape[1]), before, *runs)
        return project(mul(c, found), f"{conv}.out_proj")

    table = weights["token_embd.weight"]
    x = embedding(tokens, table.data, table.format)
    for i in range(shape.blocks):
        block = f"blk.{i}"
        h = normed(x, f"{block}.attn_norm")
        attends = f"{block}.attn_q.weight" in weights
        x = add(x, attended(h, block) if attends else convolved(h, f"{block}.shortconv"))
        h = normed(x, f"{block}.ffn_norm")
        if shape.mixture and f"{block}.ffn_gate.weight" not in weights:
            x = add(x, mixture(h, block, weights, norms, shape.mixture, project, linear))
            continue
        fed = swiglu(project(h, f"{block}.ffn_gate"), project(h, f"{block}.ffn_up"))
        x = add(x, project(fed, f"{block}.ffn_down"))
    output = "output" if "output.weight" in weights else "token_embd"
    return project(normed(x, "token_embd_norm"), output)
