"""oneDNN's product of bfloat16, by way of PyTorch, which gives it in bfloat16, too."""

from typing import Any

import torch
from torch.nn import functional


def linear(x: Any, weight: Any) -> Any:
    product = functional.linear(x.bfloat16(), weight.view(torch.bfloat16).reshape(len(weight), -1))
    return product.float()
