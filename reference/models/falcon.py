"""The forward pass of Falcon (Almazrouei et al., arXiv 2311.16867), in reference ops."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from reference.activations import gelu_erf
from reference.arithmetic import add
from reference.embedding import embedding
from reference.layer_norm import layer_norm
from reference.linear import linear
from reference.models.transformer import Shape, Weight, causal, projected
from reference.rope import rope_neox, rotation

Array = np.ndarray[Any, np.dtype[Any]]


def falcon(
    tokens: Array,
    weights: Mapping[str, Weight],
    norms: Mapping[str, Array],
    shape: Shape,
    linear: Callable[[Array, Array, str], Array] = linear,
    activation: Callable[[Array], Array] = gelu_erf,
) -> Array:
    """Logits of every token of one sequence that starts at position 0.

    Attention and the feed-forward network both read the normalised input of the block, and both
    outputs are added to it; attention uses `attn_norm_2`, if there is one. Arguments are those of
    `transformer`; `blk.N.attn_qkv` has the rows of queries, then keys, then values.
    -> float64 [tokens, vocab].
    """
    count = len(tokens)
    positions = np.arange(count, dtype=np.int32)
    turn = rotation(positions, shape.frequencies, shape.magnitude)

    def project(x: Array, name: str) -> Array:
        return projected(x, name, weights, norms, linear)

    def normed(x: Array, name: str) -> Array:
        return layer_norm(x, norms[f"{name}.weight"], norms[f"{name}.bias"], shape.norm_eps)

    table = weights["token_embd.weight"]
    x = embedding(tokens, table.data, table.format)
    q_end = shape.heads * shape.head_dim
    k_end = q_end + shape.kv_heads * shape.head_dim
    for i in range(shape.blocks):
        block = f"blk.{i}"
        h = normed(x, f"{block}.attn_norm")
        two = f"{block}.attn_norm_2.weight" in norms
        qkv = project(normed(x, f"{block}.attn_norm_2") if two else h, f"{block}.attn_qkv")
        q = qkv[:, :q_end].reshape(count, shape.heads, shape.head_dim)
        k = qkv[:, q_end:k_end].reshape(count, shape.kv_heads, shape.head_dim)
        attended = causal(rope_neox(q, turn), rope_neox(k, turn), qkv[:, k_end:], positions)
        attended = project(attended.reshape(count, q_end), f"{block}.attn_output")
        fed = project(activation(project(h, f"{block}.ffn_up")), f"{block}.ffn_down")
        x = add(x, add(fed, attended))
    output = "output" if "output.weight" in weights else "token_embd"
    return project(normed(x, "output_norm"), output)
