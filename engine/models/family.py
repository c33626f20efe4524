"""What the engine asks of a model family: its tensors by their GGUF names, and its graph."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from engine.config import ModelConfig
from engine.graph import Graph, Value
from engine.models.layers import StepInputs


class Family(Protocol):
    """A module of this package with these four functions."""

    def expected_tensors(self, config: ModelConfig, /) -> dict[str, tuple[int, ...]]:
        """Every tensor the model needs, with its dimensions (rows, elements)."""

    def optional_tensors(self, config: ModelConfig, /) -> dict[str, tuple[int, ...]]:
        """Tensors a file may have."""

    def constants(
        self, config: ModelConfig, divisors: np.ndarray[Any, Any] | None, /
    ) -> dict[str, np.ndarray[Any, Any]]:
        """Arrays that are neither in the file nor computed by a node; `divisors` is the file's
        tensor rope_freqs, if it has one."""

    def build(
        self,
        config: ModelConfig,
        weights: Mapping[str, Value],
        inputs: StepInputs,
        caches: Mapping[str, Value],
        /,
    ) -> tuple[Graph, Value]:
        """The nodes of one step and its logits [outputs, vocab]."""
