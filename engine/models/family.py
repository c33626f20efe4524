"""What the engine asks of a model family: its tensors by their GGUF names, and its graph."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.config import ModelConfig
from engine.graph import Value
from engine.models.network import Network
from engine.models.tensors import Constants, Tensors, rope_constants

Array = np.ndarray[Any, Any]


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


def of_no_block(config: ModelConfig, i: int) -> Tensors:
    """Blocks have nothing that they may lack."""
    return {}


def nothing(config: ModelConfig) -> dict[str, Any]:
    """Nothing beside the embedding; no weight that is a part of a tensor."""
    return {}


def output_norm(config: ModelConfig) -> Tensors:
    """The last norm."""
    return {"output_norm.weight": (config.hidden,)}


def output(config: ModelConfig) -> Tensors:
    """An output that is not the embedding."""
    return {"output.weight": (config.vocab, config.hidden)}


def output_and_divisors(config: ModelConfig) -> Tensors:
    """That, and divisors of rope's frequencies."""
    return output(config) | {"rope_freqs.weight": (config.rope_dims // 2,)}


@dataclass(frozen=True, slots=True)
class Family:
    """A family's functions, of which most models have those that stand here.

    Tensors are by their names, with dimensions ([experts], rows, elements), and those of a block by
    their names within it: "attn_norm.weight" for block 3's blk.3.attn_norm.weight.
    """

    # what a block needs, of this number
    block: Callable[[ModelConfig, int], Tensors]
    # the nodes of one step, and of these its logits [outputs, vocab]
    build: Callable[[Network], Value]
    # what a file may have of a block
    optional_block: Callable[[ModelConfig, int], Tensors] = of_no_block
    # what a model needs between its embedding and its blocks, and behind these
    first: Callable[[ModelConfig], Tensors] = nothing
    last: Callable[[ModelConfig], Tensors] = output_norm
    # what a file may have beside the blocks
    optional: Callable[[ModelConfig], Tensors] = output_and_divisors
    # weights of the graph that are rows of a larger tensor, of those that the file has
    parts: Callable[[ModelConfig], Mapping[str, Part]] = nothing
    # arrays that are neither in the file nor computed by a node; the second argument is what
    # divides the rotary frequencies, if the file has a tensor of that
    constants: Callable[[ModelConfig, Array | None], Constants] = rope_constants

    def expected_tensors(self, config: ModelConfig) -> Tensors:
        """Every tensor that the model needs."""
        embedding = {"token_embd.weight": (config.vocab, config.hidden)}
        blocks = _of_blocks(self.block, config)
        return embedding | self.first(config) | blocks | self.last(config)

    def optional_tensors(self, config: ModelConfig) -> Tensors:
        """Every further tensor that a file may have."""
        return self.optional(config) | _of_blocks(self.optional_block, config)


def _of_blocks(own: Callable[[ModelConfig, int], Tensors], config: ModelConfig) -> Tensors:
    """Those of all blocks, by their whole names."""
    return {
        f"blk.{i}.{name}": dims
        for i in range(config.blocks)
        for name, dims in own(config, i).items()
    }
