"""The forward pass of OLMo 2 (OLMo Team, arXiv 2501.00656), GLM 4 (GLM Team, arXiv 2406.12793) and
EXAONE 4 (LG AI Research, arXiv 2507.11407), in reference ops."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from reference.arithmetic import add
from reference.embedding import embedding
from reference.gated_activations import swiglu
from reference.linear import linear
from reference.models.transformer import Shape, Weight, causal, projected, split_fused
from reference.rms_norm import rms_norm
from reference.rope import rope_neox, rotation

Array = np.ndarray[Any, np.dtype[Any]]


def post_norm(
    tokens: Array,
    weights: Mapping[str, Weight],
    norms: Mapping[str, Array],
    shape: Shape,
    linear: Callable[[Array, Array, str], Array] = linear,
    activation: Callable[[Array, Array], Array] = swiglu,
    rope: Callable[[Array, Array], Array] = rope_neox,
    window: int = 0,
    windowed: frozenset[int] = frozenset(),
) -> Array:
    """Logits of every token of one sequence that starts at position 0.

    The outputs of attention and of the network are normalised before they are added; so are their
    inputs, and queries and keys over all heads of a token or by head, if there are such norms. GLM
    4's `rope` is rope_norm. If there is a `window`, blocks that are `windowed` attend to so many
    tokens, and RoPE is applied in these alone. Arguments are those of `transformer`.
    -> float64 [tokens, vocab].
    """
    weights = split_fused(weights, shape)
    count = len(tokens)
    positions = np.arange(count, dtype=np.int32)
    turn = rotation(positions, shape.frequencies, shape.magnitude)

    def project(x: Array, name: str) -> Array:
        return projected(x, name, weights, norms, linear)

    def normed(x: Array, name: str) -> Array:
        return rms_norm(x, norms[f"{name}.weight"], shape.norm_eps)

    def maybe(x: Array, name: str) -> Array:
        return normed(x, name) if f"{name}.weight" in norms else x

    def heads(x: Array, name: str, each: int) -> Array:
        rows, dims = project(x, name), (count, each, shape.head_dim)
        if norms.get(f"{name}_norm.weight", rows[0]).shape == rows[0].shape:  # of all together
            return maybe(rows, f"{name}_norm").reshape(dims)
        return normed(rows.reshape(dims), f"{name}_norm")

    table = weights["token_embd.weight"]
    x = embedding(tokens, table.data, table.format)
    for i in range(shape.blocks):
        block = f"blk.{i}"
        h = maybe(x, f"{block}.attn_norm")
        q = heads(h, f"{block}.attn_q", shape.heads)
        k = heads(h, f"{block}.attn_k", shape.kv_heads)
        if not window or i in windowed:
            q, k = rope(q, turn), rope(k, turn)
        near = window if i in windowed else 0
        attended = causal(q, k, project(h, f"{block}.attn_v"), positions, window=near)
        attended = project(attended.reshape(count, -1), f"{block}.attn_output")
        x = add(x, normed(attended, f"{block}.post_attention_norm"))
        h = maybe(x, f"{block}.ffn_norm")
        fed = activation(project(h, f"{block}.ffn_gate"), project(h, f"{block}.ffn_up"))
        x = add(x, normed(project(fed, f"{block}.ffn_down"), f"{block}.post_ffw_norm"))
    output = "output" if "output.weight" in weights else "token_embd"
    return project(normed(x, "output_norm"), output)
