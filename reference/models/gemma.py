"""The forward pass of Gemma (Gemma Team, arXiv 2403.08295), Gemma 2 (arXiv 2408.00118) and Gemma 3
(arXiv 2503.19786), in reference ops."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from reference.arithmetic import add, scale, softcap
from reference.embedding import embedding
from reference.gated_activations import geglu
from reference.linear import linear
from reference.models.transformer import Shape, Weight, causal, projected
from reference.rms_norm import rms_norm
from reference.rope import rope_neox, rotation

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class GemmaShape(Shape):
    """`score_scale` replaces 1 / sqrt(head_dim) unless it is 0; softcaps of 0 are off. `windowed`
    blocks have sliding-window attention over `window` tokens, and RoPE with `window_frequencies`,
    if there are any."""

    score_scale: float = 0.0
    score_cap: float = 0.0
    logit_cap: float = 0.0
    window: int = 0
    windowed: frozenset[int] = frozenset()
    window_frequencies: Array | None = None


def gemma(
    tokens: Array,
    weights: Mapping[str, Weight],
    norms: Mapping[str, Array],
    shape: GemmaShape,
    linear: Callable[[Array, Array, str], Array] = linear,
) -> Array:
    """Logits of every token of one sequence that starts at position 0.

    The outputs of attention and of the network are normalised, too, if there are
    `post_attention_norm` and `post_ffw_norm`; so is each head of queries and keys before RoPE, with
    `attn_q_norm` and `attn_k_norm`. Arguments are those of `transformer`.
    -> float64 [tokens, vocab].
    """
    count = len(tokens)
    positions = np.arange(count, dtype=np.int32)
    turn = turn_of_windows = rotation(positions, shape.frequencies, shape.magnitude)
    if shape.window_frequencies is not None:
        turn_of_windows = rotation(positions, shape.window_frequencies, 1.0)

    def project(x: Array, name: str) -> Array:
        return projected(x, name, weights, norms, linear)

    def normed(x: Array, name: str) -> Array:
        weight = norms.get(f"{name}.weight")
        return x if weight is None else rms_norm(x, weight, shape.norm_eps)

    table = weights["token_embd.weight"]
    x = embedding(tokens, table.data, table.format)
    x = scale(x, x.shape[1] ** 0.5)
    for i in range(shape.blocks):
        block = f"blk.{i}"
        h = normed(x, f"{block}.attn_norm")
        q, k = (project(h, f"{block}.attn_{n}").reshape(count, -1, shape.head_dim) for n in "qk")
        v = project(h, f"{block}.attn_v")
        q, k = normed(q, f"{block}.attn_q_norm"), normed(k, f"{block}.attn_k_norm")
        own, window = (turn_of_windows, shape.window) if i in shape.windowed else (turn, 0)
        q, k = rope_neox(q, own), rope_neox(k, own)
        scores, cap = shape.score_scale or None, shape.score_cap
        attended = causal(q, k, v, positions, scale=scores, softcap=cap, window=window)
        attended = project(attended.reshape(count, -1), f"{block}.attn_output")
        x = add(x, normed(attended, f"{block}.post_attention_norm"))
        h = normed(x, f"{block}.ffn_norm")
        fed = geglu(project(h, f"{block}.ffn_gate"), project(h, f"{block}.ffn_up"))
        x = add(x, normed(project(fed, f"{block}.ffn_down"), f"{block}.post_ffw_norm"))
    output = "output" if "output.weight" in weights else "token_embd"
    logits = project(normed(x, "output_norm"), output)
    return softcap(logits, shape.logit_cap) if shape.logit_cap else logits
