"""What the engine asks of a model family: its tensors by their GGUF names, and its graph."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.config import ModelConfig
from engine.graph import Graph, Value
from engine.models.layers import StepInputs, optional_tensors, rope_constants

Array = np.ndarray[Any, Any]
Tensors = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Rows:
    """`count` rows from `first` on of a tensor of the file: a weight of its own in the graph.

    Where they are `each` in a row, the file has as many of another weight behind every so many.
    """

    tensor: str
    first: int
    count: int
    each: int = 0

    @property
    def numbers(self) -> list[int]:
        """Which rows of the tensor they are."""
        step = self.each or self.count
        return [self.first + i + i // step * step for i in range(self.count)]


@dataclass(frozen=True, slots=True)
class Picked:
    """Rows of a tensor of the file by their `numbers`: a matrix, or so many `matrices`, which are
    in F32 and have rows for columns where they are `turned`."""

    tensor: str
    numbers: tuple[int, ...]
    matrices: int = 0
    turned: bool = False


@dataclass(frozen=True, slots=True)
class Shaped:
    """A tensor of the file whose elements, in their order, have other dimensions in the graph."""

    tensor: str
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OfEach:
    """`count` rows from `first` on of each matrix of a tensor of the file."""

    tensor: str
    first: int
    count: int


Part = Rows | Picked | Shaped | OfEach


def fused_qkv(config: ModelConfig) -> dict[str, Rows]:
    """Queries, keys and values, and their biases, out of one tensor of each block."""
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    return {
        f"blk.{i}.attn_{name}.{kind}": Rows(f"blk.{i}.attn_qkv.{kind}", first, count)
        for i in range(config.blocks)
        for name, first, count in (("q", 0, q), ("k", q, kv), ("v", q + kv, kv))
        for kind in ("weight", "bias")
    }


def no_parts(config: ModelConfig) -> dict[str, Part]:
    """Every weight is a tensor."""
    return {}


@dataclass(frozen=True, slots=True)
class Family:
    """A family's functions, of which most models have those that stand here.

    Tensors are by their names, with dimensions ([experts], rows, elements).
    """

    # every tensor the model needs
    expected_tensors: Callable[[ModelConfig], Tensors]
    # the nodes of one step, of weights and caches by their names, and its logits [outputs, vocab]
    build: Callable[
        [ModelConfig, Mapping[str, Value], StepInputs, Mapping[str, Value]], tuple[Graph, Value]
    ]
    # tensors a file may have
    optional_tensors: Callable[[ModelConfig], Tensors] = optional_tensors
    # weights of the graph that are rows of a larger tensor, of those that the file has
    parts: Callable[[ModelConfig], Mapping[str, Part]] = no_parts
    # arrays that are neither in the file nor computed by a node; the second argument is what
    # divides the rotary frequencies, if the file has a tensor of that
    constants: Callable[[ModelConfig, Array | None], dict[str, Array]] = rope_constants
