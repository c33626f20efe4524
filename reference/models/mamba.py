"""The forward pass of Mamba (Gu and Dao, arXiv 2312.00752) and Mamba 2 (Dao and Gu, arXiv
2405.21060), in reference ops."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from reference.activations import silu, softplus
from reference.arithmetic import add, add_bias
from reference.embedding import embedding
from reference.gated_activations import swiglu
from reference.linear import linear
from reference.models.transformer import Shape, Weight, projected
from reference.recurrent.causal_conv1d import causal_conv1d
from reference.recurrent.ssm_scan import ssm_scan, ssm_scan_heads
from reference.rms_norm import rms_norm

Array = np.ndarray[Any, np.dtype[Any]]


def mamba(
    tokens: Array,
    weights: Mapping[str, Weight],
    norms: Mapping[str, Array],
    shape: Shape,
    linear: Callable[[Array, Array, str], Array] = linear,
) -> Array:
    """Logits of every token of one sequence that starts at position 0.

    Mamba if there is an `ssm_x.weight`, otherwise Mamba 2; `norms` are all tensors that are not
    quantised, and give the sizes. Arguments are those of `transformer`. -> float64 [tokens, vocab].
    """
    count = len(tokens)
    routes = np.where(np.arange(count), -1, 0), np.full(count, -1)  # one sequence, no state kept

    def project(x: Array, name: str) -> Array:
        return projected(x, name, weights, norms, linear)

    def normed(x: Array, name: str) -> Array:
        return rms_norm(x, norms[f"{name}.weight"], shape.norm_eps)

    def convolved(x: Array, block: str) -> Array:
        weight, bias = (norms[f"{block}.ssm_conv1d.{kind}"] for kind in ("weight", "bias"))
        before = np.zeros((1, weight.shape[1] - 1, x.shape[1]))
        return silu(causal_conv1d(x, weight.T, bias, before, *routes)[0])

    def first(h: Array, block: str) -> Array:
        a, d = norms[f"{block}.ssm_a"], norms[f"{block}.ssm_d"]
        x, z = np.split(project(h, f"{block}.ssm_in"), 2, axis=1)
        x, size = convolved(x, block), a.shape[1]
        low, b, c = np.split(project(x, f"{block}.ssm_x"), [-2 * size, -size], axis=1)
        dt = softplus(project(low, f"{block}.ssm_dt"))
        y, _ = ssm_scan(x, dt, a.T, b, c, d, np.zeros((1, *a.T.shape)), *routes)
        return project(swiglu(z, y), f"{block}.ssm_out")

    def second(h: Array, block: str) -> Array:
        a, d = norms[f"{block}.ssm_a"][:, 0], norms[f"{block}.ssm_d"][:, 0]
        weight = norms[f"{block}.ssm_norm.weight"]
        heads, groups, inner = len(a), len(weight), weight.size
        z, xbc, dt = np.split(project(h, f"{block}.ssm_in"), [inner, -heads], axis=1)
        xbc = convolved(xbc, block)
        x = xbc[:, :inner].reshape(count, heads, -1)
        b, c = np.split(xbc[:, inner:].reshape(count, 2 * groups, -1), 2, axis=1)
        dt = softplus(add_bias(dt, norms[f"{block}.ssm_dt.bias"]))
        before = np.zeros((1, heads, b.shape[2], x.shape[2]))
        y, _ = ssm_scan_heads(x, dt, a, b, c, d, before, *routes)
        gated = swiglu(z, y.reshape(count, inner)).reshape(count * groups, -1)
        gated = rms_norm(gated, np.ones(gated.shape[1]), shape.norm_eps).reshape(count, inner)
        return project(gated * weight.ravel(), f"{block}.ssm_out")

    table = weights["token_embd.weight"]
    x = embedding(tokens, table.data, table.format)
    for i in range(shape.blocks):
        mixed = first if f"blk.{i}.ssm_x.weight" in weights else second
        x = add(x, mixed(normed(x, f"blk.{i}.attn_norm"), f"blk.{i}"))
    output = "output" if "output.weight" in weights else "token_embd"
    return project(normed(x, "output_norm"), output)
