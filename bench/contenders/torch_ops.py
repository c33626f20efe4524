"""PyTorch's own functions as candidates: what somebody would call who writes no kernel."""

from typing import Any

import torch
from torch.nn import functional


def rms_norm(x: Any, weight: Any, eps: float) -> Any:
    """By `torch.nn.functional`."""
    return functional.rms_norm(x, (x.shape[-1],), weight, eps)


def layer_norm(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    """By `torch.nn.functional`."""
    return functional.layer_norm(x, (x.shape[-1],), weight, bias, eps)


def softmax(x: Any) -> Any:
    """By `torch.softmax`."""
    return torch.softmax(x, -1)


def silu(x: Any) -> Any:
    """By `torch.nn.functional`."""
    return functional.silu(x)


def linear(x: Any, weight: Any) -> Any:
    """oneDNN's or BLAS's product of float32; the weight's bytes are a row of numbers."""
    return functional.linear(x, weight.view(torch.float32).reshape(len(weight), -1))
