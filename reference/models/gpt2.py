"""The forward pass of GPT-2 (Radford et al., 2019), BLOOM (Scao et al., arXiv 2211.05100) and MPT
(MosaicML, 2023), in reference ops."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from reference.activations import gelu
from reference.arithmetic import add
from reference.embedding import embedding
from reference.layer_norm import layer_norm
from reference.linear import linear
from reference.models.transformer import Shape, Weight, causal, projected

Array = np.ndarray[Any, np.dtype[Any]]


def gpt2(
    tokens: Array,
    weights: Mapping[str, Weight],
    norms: Mapping[str, Array],
    shape: Shape,
    linear: Callable[[Array, Array, str], Array] = linear,
    activation: Callable[[Array], Array] = gelu,
    slopes: Array | None = None,
) -> Array:
    """Logits of every token of one sequence that starts at position 0.

    Row p of `position_embd`, if there is one, is added to the token at position p; `slopes` [heads]
    are ALiBi's. `token_embd_norm` normalises the sum. `blk.N.attn_qkv` has the rows of queries,
    then keys, then values. A norm without a bias has zeros. Other arguments are those of
    `transformer`, biases among the norms. -> float64 [tokens, vocab].
    """
    count = len(tokens)
    positions = np.arange(count, dtype=np.int32)
    q_end = shape.heads * shape.head_dim
    k_end = q_end + shape.kv_heads * shape.head_dim

    def project(x: Array, name: str) -> Array:
        return projected(x, name, weights, norms, linear)

    def normed(x: Array, name: str) -> Array:
        weight = norms[f"{name}.weight"]
        return layer_norm(x, weight, norms.get(f"{name}.bias", 0 * weight), shape.norm_eps)

    table = weights["token_embd.weight"]
    x = embedding(tokens, table.data, table.format)
    if "position_embd.weight" in weights:
        places = weights["position_embd.weight"]
        x = add(x, embedding(positions, places.data, places.format))
    if "token_embd_norm.weight" in norms:
        x = normed(x, "token_embd_norm")
    for i in range(shape.blocks):
        block = f"blk.{i}"
        qkv = project(normed(x, f"{block}.attn_norm"), f"{block}.attn_qkv")
        q = qkv[:, :q_end].reshape(count, shape.heads, shape.head_dim)
        attended = causal(q, qkv[:, q_end:k_end], qkv[:, k_end:], positions, slopes=slopes)
        x = add(x, project(attended.reshape(count, q_end), f"{block}.attn_output"))
        h = normed(x, f"{block}.ffn_norm")
        x = add(x, project(activation(project(h, f"{block}.ffn_up")), f"{block}.ffn_down"))
    output = "output" if "output.weight" in weights else "token_embd"
    return project(normed(x, "output_norm"), output)
