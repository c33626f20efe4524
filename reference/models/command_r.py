"""The forward pass of Command R and Command R7B (Cohere, 2024), in reference ops."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from reference.arithmetic import add, scale
from reference.embedding import embedding
from reference.gated_activations import swiglu
from reference.layer_norm import layer_norm
from reference.linear import linear
from reference.models.transformer import Shape, Weight, causal, heads_normed, projected
from reference.rope import rope_norm, rotation

Array = np.ndarray[Any, np.dtype[Any]]


def command_r(
    tokens: Array,
    weights: Mapping[str, Weight],
    norms: Mapping[str, Array],
    shape: Shape,
    linear: Callable[[Array, Array, str], Array] = linear,
    window: int = 0,
    windowed: frozenset[int] = frozenset(),
) -> Array:
    """Logits of every token of one sequence that starts at position 0.

    Attention and the feed-forward network both read the normalised input of the block, and both
    outputs are added to it (parallel residual); norms have no bias. If there are `attn_q_norm` and
    `attn_k_norm`, each head has its own. With a `window`, the `windowed` blocks have sliding-window
    attention, and the others no RoPE. Other arguments are those of `transformer`.
    -> float64 [tokens, vocab].
    """
    count = len(tokens)
    positions = np.arange(count, dtype=np.int32)
    turn = rotation(positions, shape.frequencies, shape.magnitude)

    def project(x: Array, name: str) -> Array:
        return projected(x, name, weights, norms, linear)

    def normed(x: Array, name: str) -> Array:
        weight = norms[f"{name}.weight"]
        return layer_norm(x, weight, np.zeros_like(weight), shape.norm_eps)

    table = weights["token_embd.weight"]
    x = embedding(tokens, table.data, table.format)
    for i in range(shape.blocks):
        block = f"blk.{i}"
        h = normed(x, f"{block}.attn_norm")
        q, k, v = (project(h, f"{block}.attn_{name}") for name in "qkv")
        q = heads_normed(q, f"{block}.attn_q_norm", norms, shape)
        k = heads_normed(k, f"{block}.attn_k_norm", norms, shape)
        if not window or i in windowed:
            q, k = rope_norm(q, turn), rope_norm(k, turn)
        attended = causal(q, k, v, positions, window=window if i in windowed else 0)
        attended = project(attended.reshape(count, -1), f"{block}.attn_output")
        fed = swiglu(project(h, f"{block}.ffn_gate"), project(h, f"{block}.ffn_up"))
        x = add(x, add(project(fed, f"{block}.ffn_down"), attended))
    output = "output" if "output.weight" in weights else "token_embd"
    return scale(project(normed(x, "output_norm"), output), shape.scales.logits)
