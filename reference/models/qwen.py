"""The forward pass of Qwen 2 (Yang et al., arXiv 2407.10671), Qwen 3 (arXiv 2505.09388), Phi 3
(Abdin et al., arXiv 2404.14219), OLMoE (Muennighoff et al., arXiv 2409.02060), GLM 4.5 (arXiv
2508.06471), Hunyuan (Tencent, 2025) and Seed-OSS (ByteDance, 2025), in reference ops."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from reference.arithmetic import add
from reference.embedding import embedding
from reference.gated_activations import swiglu
from reference.linear import linear
from reference.models.mixture import mixture
from reference.models.transformer import Shape, Weight, causal, projected, split_fused
from reference.rms_norm import rms_norm
from reference.rope import rope_neox, rotation

Array = np.ndarray[Any, np.dtype[Any]]


def qwen(
    tokens: Array,
    weights: Mapping[str, Weight],
    norms: Mapping[str, Array],
    shape: Shape,
    linear: Callable[[Array, Array, str], Array] = linear,
    activation: Callable[[Array, Array], Array] = swiglu,
    norm_after_rope: bool = False,
) -> Array:
    """Logits of every token of one sequence that starts at position 0.

    Queries and keys are normalised before RoPE, or after it with `norm_after_rope` (Hunyuan), by
    head or over all heads, if there are `attn_q_norm` and `attn_k_norm`. The norm before the
    network is called `post_attention_norm` in GLM, whose first blocks are dense, and in Seed-OSS.
    Arguments are those of `transformer`.
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

    def turned(x: Array, name: str, heads: int) -> Array:
        rows = project(x, name)
        weight = norms.get(f"{name}_norm.weight")
        if weight is not None and len(weight) == rows.shape[1]:  # over all heads
            rows = normed(rows, f"{name}_norm")
        rows = rows.reshape(count, heads, shape.head_dim)
        if norm_after_rope:
            return normed(rope_neox(rows, turn), f"{name}_norm")
        if weight is not None and len(weight) == shape.head_dim:
            rows = normed(rows, f"{name}_norm")
        return rope_neox(rows, turn)

    table = weights["token_embd.weight"]
    x = embedding(tokens, table.data, table.format)
    for i in range(shape.blocks):
        block = f"blk.{i}"
        h = normed(x, f"{block}.attn_norm")
        q = turned(h, f"{block}.attn_q", shape.heads)
        k = turned(h, f"{block}.attn_k", shape.kv_heads)
        attended = causal(q, k, project(h, f"{block}.attn_v"), positions)
        x = add(x, project(attended.reshape(count, -1), f"{block}.attn_output"))
        post = f"{block}.post_attention_norm"
        h = normed(x, post if f"{post}.weight" in norms else f"{block}.ffn_norm")
        if shape.mixture and f"{block}.ffn_gate.weight" not in weights:
            x = add(x, mixture(h, block, weights, norms, shape.mixture, project, linear))
            continue
        fed = activation(project(h, f"{block}.ffn_gate"), project(h, f"{block}.ffn_up"))
        x = add(x, project(fed, f"{block}.ffn_down"))
    output = "output" if "output.weight" in weights else "token_embd"
    return project(normed(x, "output_norm"), output)
