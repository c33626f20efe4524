"""The forward pass of Mamba (Gu and Dao, arXiv 2312.00752) and Mamba 2 (Dao and Gu, arXiv
2405.21060), in reference ops."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from reference.activations import softplus
from reference.arithmetic import add
from reference.embedding import embedding
from reference.gated_activations import swiglu
from reference.linear import linear
from reference.models.mixers import convolved, mamba2, routes_of
from reference.models.transformer import Shape, Weight, projected
from reference.recurrent.ssm_scan import ssm_scan
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

    def project(x: Array, name: str) -> Array:
        return projected(x, name, weights, norms, linear)

    def normed(x: Array, name: str) -> Array:
        return rms_norm(x, norms[f"{name}.weight"], shape.norm_eps)

    def first(h: Array, block: str) -> Array:
        a, d = norms[f"{block}.ssm_a"], norms[f"{block}.ssm_d"]
        x, z = np.split(project(h, f"{block}.ssm_in"), 2, axis=1)
        x, size = convolved(x, block, norms), a.shape[1]
        low, b, c = np.split(project(x, f"{block}.ssm_x"), [-2 * size, -size], axis=1)
        dt = softplus(project(low, f"{block}.ssm_dt"))
        y, _ = ssm_scan(x, dt, a.T, b, c, d, np.zeros((1, *a.T.shape)), *routes_of(len(x)))
        return project(swiglu(z, y), f"{block}.ssm_out")

    table = weights["token_embd.weight"]
    x = embedding(tokens, table.data, table.format)
    for i in range(shape.blocks):
        block = f"blk.{i}"
        h = normed(x, f"{block}.attn_norm")
        own = f"{block}.ssm_x.weight" in weights
        x = add(x, first(h, block) if own else mamba2(h, block, norms, project, shape.norm_eps))
    output = "output" if "output.weight" in weights else "token_embd"
    return project(normed(x, "output_norm"), output)
