"""Collects a ReLU model's feed-forward inputs and active neurons over a text.

A file does not say which activation its model has. Here it is taken to be ReLU, and the engine runs
relu(gate) * up. For each token and block this collects the residual before ffn_norm, from which
PowerInfer's predictors predict, and which neurons have gate > 0.
"""

import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import numpy as np

from engine.atomic_write import OutputError
from engine.config import ModelConfig
from engine.errors import EngineError
from engine.file_errors import unwritable
from engine.graph import Graph, Value
from engine.model import Model
from engine.options import Options
from engine.passes import Memory, limits_of
from engine.progress import ProgressCallback
from engine.sparsify.activation import with_relu
from reference.op import Array

INPUT = re.compile(r"blk\.\d+\.attn_residual")
GATE = re.compile(r"blk\.\d+\.ffn_gate")
HELD_OUT_EVERY = 10  # passages


class SparsifyError(EngineError):
    """A model or a text from which no sparse model can be made, in one plain line."""


def keep_inputs_and_gates(graph: Graph, memory: Memory) -> tuple[Graph, Memory]:
    """The graph in which the networks' inputs and gates are memory, float32 [tokens, width] by
    name, valid until the next step."""
    kept, limits = Memory(), limits_of(memory)
    nodes = [
        replace(node, arguments={k: _kept(v, kept, limits) for k, v in node.arguments.items()})
        for node in graph.nodes
    ]
    return Graph(nodes), memory | kept


def _kept(value: Value | float, kept: dict[str, Array], limits: Mapping[str, int]) -> Value | float:
    if not isinstance(value, Value) or not (
        INPUT.fullmatch(value.name) or GATE.fullmatch(value.name)
    ):
        return value
    if value.name not in kept:
        kept[value.name] = np.zeros(value.sizes(limits), np.float32)
    return replace(value, kind="cache")


@contextmanager
def relu_model(path: Path, options: Options) -> Iterator[tuple[Model, dict[str, Array]]]:
    """The model with ReLU, and each block's input and gate in a step, by name."""
    model = Model(path, replace(options, passes=(with_relu, keep_inputs_and_gates)))
    try:
        yield model, model.memory
    finally:
        model.close()


@dataclass(frozen=True, slots=True)
class Block:
    """One block over all tokens: `inputs` float32 [tokens, hidden], and `bits` uint8 with one bit
    per neuron: whether it was active."""

    inputs: Array
    bits: Array
    ffn: int

    def active(self, tokens: Array) -> Array:
        """bool [tokens, ffn] of these tokens."""
        return np.unpackbits(self.bits[tokens], axis=1, count=self.ffn).astype(bool)


class Gathered:
    """The result of `gather`: counts int64 [blocks, ffn] of active tokens, and each block's pairs
    in temporary files. `held_out` bool [tokens] marks tokens that no predictor may train on."""

    def __init__(self, config: ModelConfig, inputs: list[IO[bytes]], bits: list[IO[bytes]]) -> None:
        self.config, self._inputs, self._bits = config, inputs, bits
        self.counts = np.zeros((config.blocks, config.ffn), np.int64)
        self._held_out: list[Array] = []

    def add(self, kept: Mapping[str, Array], tokens: int, held_out: bool) -> None:
        """Append the first `tokens` rows of a step's values."""
        for i, counts in enumerate(self.counts):
            active = kept[f"blk.{i}.ffn_gate"][:tokens] > 0
            counts += active.sum(axis=0)
            self._inputs[i].write(kept[f"blk.{i}.attn_residual"][:tokens].data)
            self._bits[i].write(np.packbits(active, axis=1).data)
            for file in (self._inputs[i], self._bits[i]):
                file.flush()
        self._held_out.append(np.full(tokens, held_out))

    @property
    def held_out(self) -> Array:
        return np.concatenate([np.zeros(0, bool), *self._held_out])

    @property
    def tokens(self) -> int:
        return sum(map(len, self._held_out))

    def block(self, i: int) -> Block:
        hidden, ffn = self.config.hidden, self.config.ffn
        inputs = np.memmap(self._inputs[i], np.float32, "r", shape=(self.tokens, hidden))
        bits = np.memmap(self._bits[i], np.uint8, "r", shape=(self.tokens, -(-ffn // 8)))
        return Block(inputs, bits, ffn)


def is_held_out(passage: int, passages: int) -> bool:
    """Every tenth passage, and the last."""
    return passage + 1 == passages or passage % HELD_OUT_EVERY == HELD_OUT_EVERY - 1


@contextmanager
def gather(
    path: Path,
    passages: Sequence[Sequence[int]],
    folder: Path,
    options: Options | None = None,
    progress: ProgressCallback | None = None,
) -> Iterator[Gathered]:
    """Run a model over passages, each read on its own from position 0.

    The pairs take 4 * hidden + ffn / 8 bytes of `folder` per token and block. `progress` receives
    passages done and in total. Raises `SparsifyError`, `OutputError` and the errors of loading a
    model.
    """
    if len(passages) < 2:
        raise SparsifyError(f"predictors need at least 2 passages of text, got {len(passages)}")
    if short := [i for i, passage in enumerate(passages) if len(passage) < 2]:
        raise SparsifyError(f"passage {short[0]} has fewer than 2 tokens")
    longest = max(map(len, passages))
    options = replace(options or Options(), context=longest, sequences=1, outputs=1, batch=longest)
    with ExitStack() as files:

        def nameless(count: int) -> list[IO[bytes]]:
            return [files.enter_context(tempfile.TemporaryFile(dir=folder)) for _ in range(count)]

        with relu_model(path, options) as (model, kept):
            _check(model, kept)
            _check_disk(folder, model.config, sum(map(len, passages)))
            blocks = model.config.blocks
            found = Gathered(model.config, nameless(blocks), nameless(blocks))
            for i, passage in enumerate(passages):
                model.cells.clear()
                model.evaluate(passage, 0)
                try:
                    found.add(kept, len(passage), is_held_out(i, len(passages)))
                except OSError as error:
                    raise OutputError(unwritable(folder, error)) from None
                if progress:
                    progress(i + 1, len(passages))
        yield found


def _check_disk(folder: Path, config: ModelConfig, tokens: int) -> None:
    wanted = tokens * config.blocks * (4 * config.hidden + -(-config.ffn // 8))
    free = shutil.disk_usage(folder).free
    if wanted > free:
        raise OutputError(
            f"{folder}: {tokens:,} tokens need {wanted / 1e9:.1f} GB there for a while,"
            f" {free / 1e9:.1f} GB are free: take less text"
        )


def _check(model: Model, kept: Mapping[str, Array]) -> None:
    missing = [
        name
        for i in range(model.config.blocks)
        for name in (f"blk.{i}.attn_residual", f"blk.{i}.ffn_gate")
        if name not in kept
    ]
    if missing:
        raise SparsifyError(
            f"{model.file.path}: there is no {missing[0]} in this model: want a LLaMA with gated"
            " feed-forward networks"
        )
