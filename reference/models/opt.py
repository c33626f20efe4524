"""The forward pass of OPT (Zhang et al., arXiv 2205.01068), in reference ops."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from reference.activations import relu
from reference.arithmetic import add
from reference.embedding import embedding
from reference.layer_norm import layer_norm
from reference.linear import linear
from reference.models.transformer import Shape, Weight, causal, projected

Array = np.ndarray[Any, np.dtype[Any]]

UNUSED = 2  # rows of the position table before that of position 0


def opt(
    tokens: Array,
    weights: Mapping[str, Weight],
    norms: Mapping[str, Array],
    shape: Shape,
    linear: Callable[[Array, Array, str], Array] = linear,
    activation: Callable[[Array], Array] = relu,
) -> Array:
    """Logits of every token of one sequence that starts at position 0.

    Positions are learned: row p + 2 of `position_embd` is added to the token at position p. Blocks
    are pre-norm. Arguments are those of `transformer`, biases among the norms.
    -> float64 [tokens, vocab].
    """
    count, width = len(tokens), shape.heads * shape.head_dim
    positions = np.arange(count, dtype=np.int32)

    def project(x: Array, name: str) -> Array:
        return projected(x, name, weights, norms, linear)

    def normed(x: Array, name: str) -> Array:
        return layer_norm(x, norms[f"{name}.weight"], norms[f"{name}.bias"], shape.norm_eps)

    words, places = weights["token_embd.weight"], weights["position_embd.weight"]
    x = embedding(tokens, words.data, words.format)
    x = add(x, embedding(positions + UNUSED, places.data, places.format))
    for i in range(shape.blocks):
        block = f"blk.{i}"
        h = normed(x, f"{block}.attn_norm")
        q, k, v = (project(h, f"{block}.attn_{name}") for name in "qkv")
        q = q.reshape(count, shape.heads, shape.head_dim)
        attended = causal(q, k.reshape(count, shape.kv_heads, shape.head_dim), v, positions)
        x = add(x, project(attended.reshape(count, width), f"{block}.attn_output"))
        h = normed(x, f"{block}.ffn_norm")
        x = add(x, project(activation(project(h, f"{block}.ffn_up")), f"{block}.ffn_down"))
    output = "output" if "output.weight" in weights else "token_embd"
    return project(normed(x, "output_norm"), output)
