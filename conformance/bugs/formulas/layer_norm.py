"""Planted bugs of layer_norm."""

import numpy as np

from conformance.bugs.bug import changed, in_python
from reference import layer_norm, rms_norm
from reference.op import Array


def layer_norm_over_one_less(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    x = x.astype(np.float64)
    centred = x - x.mean(axis=1, keepdims=True)
    variance = np.sum(centred**2, axis=1, keepdims=True) / max(x.shape[1] - 1, 1)
    return centred / np.sqrt(variance + eps) * weight + bias


def layer_norm_of_squares_less_mean(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    mean = np.mean(x, axis=1, keepdims=True, dtype=np.float32)
    variance = np.mean(x * x, axis=1, keepdims=True, dtype=np.float32) - mean * mean
    return (x - mean) / np.sqrt(np.maximum(variance, 0).astype(np.float64) + eps) * weight + bias


BUGS = in_python(
    "layer_norm",
    layer_norm_over_one_less,
    layer_norm_of_squares_less_mean,
    layer_norm_without_mean=lambda x, weight, bias, eps: rms_norm.rms_norm(x, weight, eps) + bias,
    layer_norm_bias_scaled=lambda x, weight, bias, eps: (
        layer_norm.layer_norm(x, np.ones_like(weight), bias, eps) * weight
    ),
    layer_norm_without_eps=changed(layer_norm.layer_norm, eps=0.0),
)
