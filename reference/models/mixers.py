"""Mamba 2's mixer (Dao and Gu, arXiv 2405.21060), in reference ops."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from reference.activations import silu, softplus
from reference.arithmetic import add_bias
from reference.gated_activations import swiglu
from reference.recurrent.causal_conv1d import causal_conv1d
from reference.recurrent.ssm_scan import ssm_scan_heads
from reference.rms_norm import rms_norm

Array = np.ndarray[Any, np.dtype[Any]]


def routes_of(count: int) -> tuple[Array, Array]:
    """Where so many tokens of one sequence read their state and write it: nowhere."""
    return np.where(np.arange(count), -1, 0), np.full(count, -1)


def convolved(x: Array, block: str, norms: Mapping[str, Array]) -> Array:
    """SiLU of x [tokens, channels] convolved over its last tokens."""
    weight, bias = (norms[f"{block}.ssm_conv1d.{kind}"] for kind in ("weight", "bias"))
    before = np.zeros((1, weight.shape[1] - 1, x.shape[1]))
    return silu(causal_conv1d(x, weight.T, bias, before, *routes_of(len(x)))[0])


def mamba2(
    h: Array,
    block: str,
    norms: Mapping[str, Array],
    project: Callable[[Array, str], Array],
    eps: float,
) -> Array:
    """The mixer of a block: gated, then normalised group by group.

    h [tokens, hidden], normalised; norms are all tensors that are not quantised, and give the
    sizes; project(x, NAME) is linear with the tensor NAME.weight -> float64 [tokens, hidden].
    """
    a, d = norms[f"{block}.ssm_a"][:, 0], norms[f"{block}.ssm_d"][:, 0]
    weight = norms[f"{block}.ssm_norm.weight"]
    count, heads, groups, inner = len(h), len(a), len(weight), weight.size
    z, xbc, dt = np.split(project(h, f"{block}.ssm_in"), [inner, -heads], axis=1)
    xbc = convolved(xbc, block, norms)
    x = xbc[:, :inner].reshape(count, heads, -1)
    b, c = np.split(xbc[:, inner:].reshape(count, 2 * groups, -1), 2, axis=1)
    dt = softplus(add_bias(dt, norms[f"{block}.ssm_dt.bias"]))
    before = np.zeros((1, heads, b.shape[2], x.shape[2]))
    y, _ = ssm_scan_heads(x, dt, a, b, c, d, before, *routes_of(count))
    gated = swiglu(z, y.reshape(count, inner)).reshape(count * groups, -1)
    gated = rms_norm(gated, np.ones(gated.shape[1]), eps).reshape(count, inner)
    return project(gated * weight.ravel(), f"{block}.ssm_out")
