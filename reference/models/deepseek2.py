"""The forward pass of DeepSeek-V2 (arXiv 2405.04434), V3 (arXiv 2412.19437) and MiniCPM 3 (Hu et
al., arXiv 2404.06395), in reference ops: MLA in the paper's first form, in which every head has
keys and values of its own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from reference.arithmetic import add, scale
from reference.embedding import embedding
from reference.formats import FORMATS
from reference.gated_activations import swiglu
from reference.linear import linear
from reference.models.mixture import mixture
from reference.models.transformer import Shape, Weight, projected
from reference.rms_norm import rms_norm
from reference.rope import rope_norm, rotation

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention: sizes of the latent vector and of a head's key without RoPE; the
    scale of scores; the number of leading dense blocks; the eps of the latent norms; and RoPE's
    pairing."""

    kv_rank: int
    nope: int
    scale: float
    leading: int
    eps: float
    rope: Callable[[Array, Array], Array] = rope_norm


def deepseek2(
    tokens: Array,
    weights: Mapping[str, Weight],
    norms: Mapping[str, Array],
    shape: Shape,
    linear: Callable[[Array, Array, str], Array] = linear,
    *,
    own: Latent,
) -> Array:
    """Logits of every token of one sequence that starts at position 0.

    A head's key is W_UK times the token's latent vector, followed by the RoPE key that all heads
    share; its value is W_UV times the latent. W_UK is attn_k_b [heads, kv_rank, nope], W_UV
    attn_v_b [heads, value, kv_rank]; or attn_kv_b [heads * (nope + value), kv_rank] holds both.
    Other arguments are those of `transformer`.
    -> float64 [tokens, vocab].
    """
    count = len(tokens)
    positions = np.arange(count, dtype=np.int32)
    turn = rotation(positions, shape.frequencies, shape.magnitude)
    future = np.triu(np.full((count, count), -np.inf), 1)

    def project(x: Array, name: str) -> Array:
        return projected(x, name, weights, norms, linear)

    def normed(x: Array, name: str, eps: float = shape.norm_eps) -> Array:
        return rms_norm(x, norms[f"{name}.weight"], eps)

    def matrices(name: str) -> Array:
        """float64 [..., rows, elements]."""
        weight = weights[f"{name}.weight"]
        return FORMATS[weight.format].dequantise(weight.data).astype(np.float64)

    def makers(block: str) -> tuple[Array, Array]:
        """W_UK and W_UV, float64 [heads, nope, kv_rank] and [heads, value, kv_rank]."""
        if f"{block}.attn_kv_b.weight" in weights:
            both = matrices(f"{block}.attn_kv_b").reshape(shape.heads, -1, own.kv_rank)
            return both[:, : own.nope], both[:, own.nope :]
        return matrices(f"{block}.attn_k_b").swapaxes(1, 2), matrices(f"{block}.attn_v_b")

    def attend(h: Array, block: str) -> Array:
        if f"{block}.attn_q.weight" in weights:
            q = project(h, f"{block}.attn_q")
        else:
            latent = normed(project(h, f"{block}.attn_q_a"), f"{block}.attn_q_a_norm", own.eps)
            q = project(latent, f"{block}.attn_q_b")
        q = q.reshape(count, shape.heads, -1)
        both = project(h, f"{block}.attn_kv_a_mqa")
        latent = normed(both[:, : own.kv_rank], f"{block}.attn_kv_a_norm", own.eps)
        shared = own.rope(both[:, None, own.kv_rank :], turn)
        q = np.concatenate([q[..., : own.nope], own.rope(q[..., own.nope :], turn)], axis=2)
        k, v = (np.einsum("tr,hnr->thn", latent, matrix) for matrix in makers(block))
        k = np.concatenate([k, np.repeat(shared, shape.heads, axis=1)], axis=2)
        scores = own.scale * np.einsum("thd,shd->hts", q, k) + future
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares = powers / powers.sum(axis=-1, keepdims=True)
        attended = np.einsum("hts,shv->thv", shares, v).reshape(count, -1)
        return project(attended, f"{block}.attn_output")

    def feed(h: Array, i: int) -> Array:
        block = f"blk.{i}"
        if i >= own.leading:
            assert shape.mixture
            return mixture(h, block, weights, norms, shape.mixture, project, linear)
        fed = swiglu(*(project(h, f"{block}.ffn_{name}") for name in ("gate", "up")))
        return project(fed, f"{block}.ffn_down")

    table = weights["token_embd.weight"]
    x = scale(embedding(tokens, table.data, table.format), shape.scales.embedding)
    for i in range(shape.blocks):
        attended = attend(normed(x, f"blk.{i}.attn_norm"), f"blk.{i}")
        x = add(x, scale(attended, shape.scales.residual))
        x = add(x, scale(feed(normed(x, f"blk.{i}.ffn_norm"), i), shape.scales.residual))
    output = "output" if "output.weight" in weights else "token_embd"
    return scale(project(normed(x, "output_norm"), output), shape.scales.logits)
