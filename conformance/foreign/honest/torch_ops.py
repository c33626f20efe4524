"""Ops as PyTorch's functions say them, on float32 and on as many threads as it likes; those that
kernels are timed against stand in bench/contenders."""

from typing import Any

import torch
from torch.nn import functional


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
