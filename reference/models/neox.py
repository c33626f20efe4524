"""The forward pass of GPT-NeoX (Black et al., arXiv 2204.06745), Phi 1 to 2 (Li et al., arXiv
2309.05463), StarCoder 2 (Lozhkov et al., arXiv 2402.19173), StableLM (Bellagente et al., arXiv
2402.17834) and Nemotron (Parmar et al., arXiv 2402.16819), in reference ops."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from reference.activations import gelu
from reference.arithmetic import add
from reference.embedding import embedding
from reference.layer_norm import layer_norm
from reference.linear import linear
from reference.models.transformer import Shape, Weight, causal, heads_normed, projected
from reference.rope import rope_neox, rotation

Array = np.ndarray[Any, np.dtype[Any]]


def neox(
    tokens: Array,
    weights: Mapping[str, Weight],
    norms: Mapping[str, Array],
    shape: Shape,
    linear: Callable[[Array, Array, str], Array] = linear,
    activation: Callable[..., Array] = gelu,
    parallel: bool = False,
) -> Array:
    """Logits of every token of one sequence that starts at position 0.

    If `parallel`, the feed-forward network reads the block's input, like attention, after a norm of
    its own or, without `ffn_norm`, attention's; otherwise it reads the sum with attention's output.
    `activation` takes gate and up if there is an `ffn_gate`. Queries, keys and values may be rows
    of one `attn_qkv`, in this order, and each head of queries and keys may have a norm. Other
    arguments are those of `transformer`, biases among the norms; fewer `frequencies` than half of
    head_dim are a partial RoPE of its first dimensions.
    -> float64 [tokens, vocab].
    """
    count = len(tokens)
    positions = np.arange(count, dtype=np.int32)
    turn = rotation(positions, shape.frequencies, shape.magnitude)
    q_end = shape.heads * shape.head_dim
    k_end = q_end + shape.kv_heads * shape.head_dim

    def project(x: Array, name: str) -> Array:
        return projected(x, name, weights, norms, linear)

    def normed(x: Array, name: str) -> Array:
        return layer_norm(x, norms[f"{name}.weight"], norms[f"{name}.bias"], shape.norm_eps)

    def attend(h: Array, block: str) -> Array:
        if f"{block}.attn_qkv.weight" in weights:
            qkv = project(h, f"{block}.attn_qkv")
        else:
            qkv = np.concatenate([project(h, f"{block}.attn_{n}") for n in "qkv"], axis=1)
        q = heads_normed(qkv[:, :q_end], f"{block}.attn_q_norm", norms, shape)
        k = heads_normed(qkv[:, q_end:k_end], f"{block}.attn_k_norm", norms, shape)
        attended = causal(rope_neox(q, turn), rope_neox(k, turn), qkv[:, k_end:], positions)
        return project(attended.reshape(count, q_end), f"{block}.attn_output")

    def feed(h: Array, block: str) -> Array:
        names = ("gate", "up") if f"{block}.ffn_gate.weight" in weights else ("up",)
        fed = activation(*(project(h, f"{block}.ffn_{name}") for name in names))
        return project(fed, f"{block}.ffn_down")

    table = weights["token_embd.weight"]
    x = embedding(tokens, table.data, table.format)
    for i in range(shape.blocks):
        block = f"blk.{i}"
        h = normed(x, f"{block}.attn_norm")
        attended = attend(h, block)
        if parallel:
            if f"{block}.ffn_norm.weight" in norms:
                h = normed(x, f"{block}.ffn_norm")
            x = add(x, add(feed(h, block), attended))
        else:
            x = add(x, attended)
            x = add(x, feed(normed(x, f"{block}.ffn_norm"), block))
    output = "output" if "output.weight" in weights else "token_embd"
    return project(normed(x, "output_norm"), output)
