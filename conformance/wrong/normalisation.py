"""Planted bugs of norms, softmax, activations and plain arithmetic."""

import math
from typing import Any

import numpy as np

from conformance.wrong.wrong import Wrong, computing
from reference import (
    activations,
    arithmetic,
    gated_activations,
    layer_norm,
    rms_norm,
    softmax,
)
from reference.op import Array


def norm_without_eps(x: Array, weight: Array, eps: float) -> Array:
    return rms_norm.rms_norm(x, weight, 0.0)


def norm_with_eps_outside(x: Array, weight: Array, eps: float) -> Array:
    x = x.astype(np.float64)
    return x / (np.sqrt(np.mean(x * x, axis=1, keepdims=True)) + eps) * weight


def norm_over_one_less(x: Array, weight: Array, eps: float) -> Array:
    x = x.astype(np.float64)
    mean = np.sum(x * x, axis=1, keepdims=True) / (x.shape[1] - 1)
    return x / np.sqrt(mean + eps) * weight


def norm_in_float16(x: Array, weight: Array, eps: float) -> Array:
    square = np.sum(x.astype(np.float16) ** 2, axis=1, keepdims=True, dtype=np.float16)
    return x / np.sqrt(square.astype(np.float64) / x.shape[1] + eps) * weight


def norm_that_centres(x: Array, weight: Array, eps: float) -> Array:
    return rms_norm.rms_norm(x - x.mean(axis=1, keepdims=True), weight, eps)


def norm_with_one_plus_weight(x: Array, weight: Array, eps: float) -> Array:
    return rms_norm.rms_norm(x, 1 + weight, eps)


def layer_norm_without_mean(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    return rms_norm.rms_norm(x, weight, eps) + bias


def layer_norm_over_one_less(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    x = x.astype(np.float64)
    centred = x - x.mean(axis=1, keepdims=True)
    variance = np.sum(centred**2, axis=1, keepdims=True) / max(x.shape[1] - 1, 1)
    return centred / np.sqrt(variance + eps) * weight + bias


def layer_norm_of_squares_less_mean(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    mean = np.mean(x, axis=1, keepdims=True, dtype=np.float32)
    variance = np.mean(x * x, axis=1, keepdims=True, dtype=np.float32) - mean * mean
    return (x - mean) / np.sqrt(np.maximum(variance, 0).astype(np.float64) + eps) * weight + bias


def layer_norm_bias_scaled(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    return layer_norm.layer_norm(x, np.ones_like(weight), bias, eps) * weight


def layer_norm_without_eps(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    return layer_norm.layer_norm(x, weight, bias, 0.0)


def softmax_without_max(x: Array) -> Array:
    powers = np.exp(x)
    return powers / powers.sum(axis=1, keepdims=True)


def softmax_missing_the_last(x: Array) -> Array:
    powers = np.exp(x - x.max(axis=1, keepdims=True, initial=-np.inf).astype(np.float64))
    return powers / powers[:, :-1].sum(axis=1, keepdims=True)


def softmax_of_powers_of_two(x: Array) -> Array:
    return softmax.softmax(x * math.log(2))


def softmax_over_tokens(x: Array) -> Array:
    return softmax.softmax(x.T).T


def softmax_unmasked(x: Array) -> Array:
    return softmax.softmax(np.where(np.isinf(x), 0, x))


def silu_by_quick_gelu(x: Array) -> Array:
    return x * activations.sigmoid(1.702 * x.astype(np.float64))


def silu_by_lines(x: Array) -> Array:
    return x * np.clip(x / 6 + 0.5, 0, 1)


def gelu_by_erf(x: Array) -> Array:
    phi = [0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x.ravel().tolist()]
    return x * np.reshape(phi, x.shape)


def gelu_erf_by_tanh(x: Array) -> Array:
    return activations.gelu(x)


def relu_that_leaks(x: Array) -> Array:
    return np.where(x > 0, x, 0.01 * x)


def square_with_sign(x: Array) -> Array:
    return x * np.abs(x)


def swiglu_exchanged(gate: Array, up: Array) -> Array:
    return gated_activations.swiglu(up, gate)


def geglu_by_silu(gate: Array, up: Array) -> Array:
    return gated_activations.swiglu(gate, up)


def reglu_squared(gate: Array, up: Array) -> Array:
    return gated_activations.reglu(gate, up) ** 2


def squared_reglu_with_sign(gate: Array, up: Array) -> Array:
    return square_with_sign(gate) * up


def drelu_of_the_product(gate: Array, up: Array) -> Array:
    return activations.relu(gate * up)


def add_in_float16(x: Array, y: Array) -> Array:
    return x.astype(np.float16) + y.astype(np.float16)


def bias_of_the_next(x: Array, bias: Array) -> Array:
    return arithmetic.add_bias(x, np.roll(bias, 1))


def scale_in_float16(x: Array, factor: float) -> Any:
    return x * np.float16(factor)


BUGS = (
    Wrong("rms_norm", "no-eps", computing(norm_without_eps)),
    Wrong("rms_norm", "eps-outside-the-root", computing(norm_with_eps_outside)),
    Wrong("rms_norm", "mean-over-one-less", computing(norm_over_one_less)),
    Wrong("rms_norm", "float16-sum", computing(norm_in_float16)),
    Wrong("rms_norm", "centred", computing(norm_that_centres)),
    Wrong("rms_norm", "one-plus-weight", computing(norm_with_one_plus_weight)),
    Wrong("layer_norm", "no-mean", computing(layer_norm_without_mean)),
    Wrong("layer_norm", "variance-over-one-less", computing(layer_norm_over_one_less)),
    Wrong("layer_norm", "squares-less-mean", computing(layer_norm_of_squares_less_mean)),
    Wrong("layer_norm", "bias-scaled", computing(layer_norm_bias_scaled)),
    Wrong("layer_norm", "no-eps", computing(layer_norm_without_eps)),
    Wrong("softmax", "no-max", computing(softmax_without_max)),
    Wrong("softmax", "sum-misses-the-last", computing(softmax_missing_the_last)),
    Wrong("softmax", "base-two", computing(softmax_of_powers_of_two)),
    Wrong("softmax", "over-tokens", computing(softmax_over_tokens)),
    Wrong("softmax", "mask-ignored", computing(softmax_unmasked)),
    Wrong("silu", "quick-gelu", computing(silu_by_quick_gelu)),
    Wrong("silu", "hard-sigmoid", computing(silu_by_lines)),
    Wrong("gelu", "erf-form", computing(gelu_by_erf)),
    Wrong("gelu_erf", "tanh-form", computing(gelu_erf_by_tanh)),
    Wrong("relu", "leaky", computing(relu_that_leaks)),
    Wrong("squared_relu", "keeps-the-sign", computing(square_with_sign)),
    Wrong("swiglu", "gate-and-up-exchanged", computing(swiglu_exchanged)),
    Wrong("geglu", "silu", computing(geglu_by_silu)),
    Wrong("reglu", "relu-of-up-too", computing(gated_activations.drelu)),
    Wrong("squared_reglu", "not-squared", computing(gated_activations.reglu)),
    Wrong("squared_reglu", "up-squared-too", computing(reglu_squared)),
    Wrong("squared_reglu", "keeps-the-sign", computing(squared_reglu_with_sign)),
    Wrong("drelu", "up-as-it-is", computing(gated_activations.reglu)),
    Wrong("drelu", "of-the-product", computing(drelu_of_the_product)),
    Wrong("add", "float16", computing(add_in_float16)),
    Wrong("add_bias", "off-by-one", computing(bias_of_the_next)),
    Wrong("scale", "float16-factor", computing(scale_in_float16)),
)
