"""Ops by PyTorch's functions, on float32 and on as many threads as it likes: what one calls without
writing kernels."""

import math
from typing import Any

import torch
from torch.nn import functional


def rms_norm(x: Any, weight: Any, eps: float) -> Any:
    return functional.rms_norm(x, (x.shape[-1],), weight, eps)


def layer_norm(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    return functional.layer_norm(x, (x.shape[-1],), weight, bias, eps)


def softmax(x: Any) -> Any:
    return torch.softmax(x, -1)


def silu(x: Any) -> Any:
    return functional.silu(x)


def linear(x: Any, weight: Any) -> Any:
    """oneDNN's or BLAS's product of float32; the weight's bytes are a row of numbers."""
    return functional.linear(x, weight.view(torch.float32).reshape(len(weight), -1))


def attention(
    q: Any, k: Any, v: Any, lists: Any, spans: Any, positions: Any, cell_positions: Any,
    slopes: Any, sinks: Any, scale: float, softcap: float,
) -> Any:  # fmt: skip
    """By `scaled_dot_product_attention`, with one more cell for the sinks, whose key and value are
    zero; it knows no softcap, so that scores are capped by functions of their own."""
    heads, head_dim = q.shape[1:]
    bias = torch.full((heads, len(q), len(cell_positions) + 1), -math.inf)
    for t, (sequence, begin, end) in enumerate(spans.tolist()):
        cells = lists[sequence, begin:end].long()
        bias[:, t, cells] = -slopes[:, None] * (positions[t] - cell_positions[cells])
    unseen = torch.isinf(bias).all(dim=(0, 1))[:-1]
    bias[..., -1] = torch.maximum(bias[..., -1], sinks[:, None])
    keys, values = (
        functional.pad(
            x.view(torch.float32).masked_fill(unseen[:, None], 0).view(len(x), -1, head_dim),
            (0, 0, 0, 0, 0, 1),
        ).transpose(0, 1)
        for x in (k, v)
    )
    queries = q.transpose(0, 1)
    if not softcap:
        out = functional.scaled_dot_product_attention(
            queries[None], keys[None], values[None], bias[None], scale=scale, enable_gqa=True
        )[0]
    else:
        repeats = heads // len(keys)
        keys, values = (x.repeat_interleave(repeats, 0) for x in (keys, values))
        scores = torch.tanh(queries @ keys.transpose(1, 2) * (scale / softcap)) * softcap
        out = torch.softmax(scores + bias, -1) @ values
    out[:, spans[:, 1] == spans[:, 2]] = 0
    return out.transpose(0, 1).contiguous()


def gelu(x: Any) -> Any:
    return functional.gelu(x, approximate="tanh")


def gelu_erf(x: Any) -> Any:
    return functional.gelu(x)


def sigmoid(x: Any) -> Any:
    return torch.sigmoid(x)


def swiglu(gate: Any, up: Any) -> Any:
    return functional.silu(gate) * up


def softcap(x: Any, cap: float) -> Any:
    return torch.tanh(x / cap) * cap


def add(x: Any, y: Any) -> Any:
    return x + y


def relu(x: Any) -> Any:
    return functional.relu(x)


def greedy(logits: Any) -> Any:
    return torch.argmax(logits)[None].int()
