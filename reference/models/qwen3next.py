"""The forward pass of Qwen 3 Next (Qwen team, 2025) and Qwen 3.5 (2026), dense or with experts, in
reference ops."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from reference.activations import sigmoid, silu, softplus
from reference.arithmetic import add, add_bias, mul
from reference.embedding import embedding
from reference.gated_activations import swiglu
from reference.linear import linear
from reference.models.mixture import mixture
from reference.models.transformer import Shape, Weight, causal, projected
from reference.recurrent.causal_conv1d import causal_conv1d
from reference.recurrent.gated_delta_net import gated_delta_net
from reference.rms_norm import rms_norm
from reference.rope import rope_neox, rotation

Array = np.ndarray[Any, np.dtype[Any]]


def qwen3next(
    tokens: Array,
    weights: Mapping[str, Weight],
    norms: Mapping[str, Array],
    shape: Shape,
    linear: Callable[[Array, Array, str], Array] = linear,
) -> Array:
    """Logits of every token of one sequence that starts at position 0.

    A block with `attn_q` is gated attention, with rows of each head's query, then its gate; any
    other is a gated delta net, whose heads share queries and keys: consecutive heads if there is an
    `ssm_ba` (Qwen 3 Next), otherwise head h has group h mod groups. `norms` are all tensors that
    are not quantised. Arguments are those of `transformer`. -> float64 [tokens, vocab].
    """
    count = len(tokens)
    positions = np.arange(count, dtype=np.int32)
    turn = rotation(positions, shape.frequencies, shape.magnitude)
    routes = np.where(positions, -1, 0), np.full(count, -1)  # one sequence, no state kept

    def project(x: Array, name: str) -> Array:
        return projected(x, name, weights, norms, linear)

    def normed(x: Array, name: str) -> Array:
        return rms_norm(x, norms[f"{name}.weight"], shape.norm_eps)

    def attended(h: Array, block: str) -> Array:
        queries = project(h, f"{block}.attn_q").reshape(count, shape.heads, 2, -1)
        k = project(h, f"{block}.attn_k").reshape(count, shape.kv_heads, -1)
        q = rope_neox(normed(queries[:, :, 0], f"{block}.attn_q_norm"), turn)
        k = rope_neox(normed(k, f"{block}.attn_k_norm"), turn)
        found = causal(q, k, project(h, f"{block}.attn_v"), positions)
        gated = mul(found.reshape(count, -1), sigmoid(queries[:, :, 1].reshape(count, -1)))
        return project(gated, f"{block}.attn_output")

    def delta_net(h: Array, block: str) -> Array:
        a, weight = norms[f"{block}.ssm_a"], norms[f"{block}.ssm_conv1d.weight"]
        heads, size = len(a), len(norms[f"{block}.ssm_norm.weight"])
        groups = (len(weight) // size - heads) // 2
        before = np.zeros((1, weight.shape[1] - 1, len(weight)))
        x = project(h, f"{block}.attn_qkv")
        x = silu(causal_conv1d(x, weight.T, np.zeros(len(weight)), before, *routes)[0])
        q, k, v = np.split(x.reshape(count, -1, size), [groups, 2 * groups], axis=1)
        if f"{block}.ssm_ba.weight" in weights:
            both = project(h, f"{block}.ssm_ba").reshape(count, groups, 2, -1)
            b, dt = both[:, :, 0].reshape(count, heads), both[:, :, 1].reshape(count, heads)
            group_of = np.arange(heads) // (heads // groups)
        else:
            b, dt = project(h, f"{block}.ssm_beta"), project(h, f"{block}.ssm_alpha")
            group_of = np.arange(heads) % groups
        g = softplus(add_bias(dt, norms[f"{block}.ssm_dt.bias"])) * a.astype(np.float64)
        q, k = unit(q) / np.sqrt(size), unit(k)
        before = np.zeros((1, heads, size, size))
        out, _ = gated_delta_net(q, k, v, g, sigmoid(b), group_of, before, *routes)
        out = normed(out, f"{block}.ssm_norm").reshape(count, -1)
        return project(swiglu(project(h, f"{block}.attn_gate"), out), f"{block}.ssm_out")

    def unit(x: Array) -> Array:
        return np.asarray(x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + shape.norm_eps))

    table = weights["token_embd.weight"]
    x = embedding(tokens, table.data, table.format)
    for i in range(shape.blocks):
        block = f"blk.{i}"
        h = normed(x, f"{block}.attn_norm")
        attends = f"{block}.attn_q.weight" in weights
        x = add(x, attended(h, block) if attends else delta_net(h, block))
        h = normed(x, f"{block}.post_attention_norm")
        if shape.mixture:
            x = add(x, mixture(h, block, weights, norms, shape.mixture, project, linear))
            continue
        fed = swiglu(project(h, f"{block}.ffn_gate"), project(h, f"{block}.ffn_up"))
        x = add(x, project(fed, f"{block}.ffn_down"))
    output = "output" if "output.weight" in weights else "token_embd"
    return project(normed(x, "output_norm"), output)
