"""The interface of a model family: its tensors by their GGUF names, and its graph."""

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
    """`count` rows from `first` of a tensor of the file: a weight of its own in the graph. With
    `each`, they alternate in the file with as many rows of another weight, in groups of so many."""

    tensor: str
    first: int
    count: int
    each: int = 0

    @property
    def numbers(self) -> list[int]:
        """The row indices in the tensor."""
        step = self.each or self.count
        return [self.first + i + i // step * step for i in range(self.count)]


@dataclass(frozen=True, slots=True)
class Picked:
    """Rows of a tensor of the file by their `numbers`: a matrix, or so many `matrices`, in F32 and
    transposed where they are `turned`."""

    tensor: str
    numbers: tuple[int, ...]
    matrices: int = 0
    turned: bool = False


@dataclass(frozen=True, slots=True)
class Shaped:
    """A tensor of the file with other dimensions in the graph, elements in the same order."""

    tensor: str
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OfEach:
    """`count` rows from `first` of each matrix of a tensor of the file."""

    tensor: str
    first: int
    count: int


Part = Rows | Picked | Shaped | OfEach


def fused_qkv(config: ModelConfig) -> dict[str, Rows]:
    """Queries, keys and values, and their biases, as parts of one tensor of each block."""
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    return {
        f"blk.{i}.attn_{name}.{kind}": Rows(f"blk.{i}.attn_qkv.{kind}", first, count)
        for i in range(config.blocks)
        for name, first, count in (("q", 0, q), ("k", q, kv), ("v", q + kv, kv))
        for kind in ("weight", "bias")
    }


def of_no_block(config: ModelConfig, i: int) -> Tensors:
    """Blocks have no optional tensors."""
    return {}


def nothing(config: ModelConfig) -> dict[str, Any]:
    """No tensors besides the embedding, and no weights that are parts of tensors."""
    return {}


def output_norm(config: ModelConfig) -> Tensors:
    """The final norm."""
    return {"output_norm.weight": (config.hidden,)}


def output(config: ModelConfig) -> Tensors:
    """An output matrix that is not the embedding."""
    return {"output.weight": (config.vocab, config.hidden)}


def output_and_divisors(config: ModelConfig) -> Tensors:
    """An output matrix, and divisors of rope's frequencies."""
    return output(config) | {"rope_freqs.weight": (config.rope_dims // 2,)}


def output_and_two_sets(config: ModelConfig) -> Tensors:
    """The same with divisors for two lengths of context, too: LongRoPE's."""
    sets = (f"rope_factors_{kind}.weight" for kind in ("long", "short"))
    return output_and_divisors(config) | dict.fromkeys(sets, (config.rope_dims // 2,))


@dataclass(frozen=True, slots=True)
class Family:
    """A family's functions, of which most models have those that stand here.

    Tensors are by their names, with dimensions ([experts], rows, elements), and those of a block by
    their names within it: "attn_norm.weight" for block 3's blk.3.attn_norm.weight.
    """

    # the tensors of the block with this number
    block: Callable[[ModelConfig, int], Tensors]
    # appends the nodes of one step; returns its logits [outputs, vocab]
    build: Callable[[Network], Value]
    # optional tensors of a block
    optional_block: Callable[[ModelConfig, int], Tensors] = of_no_block
    # tensors between embedding and blocks, and after the blocks
    first: Callable[[ModelConfig], Tensors] = nothing
    last: Callable[[ModelConfig], Tensors] = output_norm
    # optional tensors besides the blocks
    optional: Callable[[ModelConfig], Tensors] = output_and_divisors
    # weights of the graph that are rows of a larger tensor, among those in the file
    parts: Callable[[ModelConfig], Mapping[str, Part]] = nothing
    # arrays neither in the file nor computed by a node; the second argument holds the divisors
    # of rotary frequencies, if the file has a tensor of them
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
    """The tensors of all blocks, by their full names."""
    return {
        f"blk.{i}.{name}": dims
        for i in range(config.blocks)
        for name, dims in own(config, i).items()
    }
