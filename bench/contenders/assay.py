"""Assay's engine as a contender."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bench.contenders.contender import Array, Setup
from engine import Engine, SamplingParams
from engine.compile.executable import ByTokens
from engine.sparsity import settings


def loaded(model: Path, setup: Setup, **options: Any) -> Engine:
    """Load the model as a setup requires."""
    return Engine.load(model, **{**asdict(setup), "outputs": setup.sequences, **options})


class Assay:
    """The engine with certified kernels, as in `assay run`."""

    options: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, model: Path, setup: Setup) -> None:
        self.engine = loaded(model, setup, **self.options)
        self.vocab = self.engine.model.config.vocab
        self.exact = not isinstance(self.engine.model.executable, ByTokens)
        self._greedy = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)

    def hold(self, sequences: int, length: int) -> int:
        if not length or sequences > 1:
            self.engine.reset()
            return 0
        cells = self.engine.model.cells
        cells.remove(0, begin=length)
        return cells.next_position(0)

    def evaluate(self, tokens: Array, start: int) -> Array:
        model = self.engine.model
        n_sequences, n = tokens.shape
        flat = tokens.ravel().tolist()
        positions = list(range(start, start + n)) * n_sequences
        sequences = [(s,) for s in range(n_sequences) for _ in range(n)]
        logits = np.empty((n_sequences, model.config.vocab), np.float32)
        done = 0
        for first in range(0, len(flat), model.limits["tokens"]):
            part = slice(first, min(first + model.limits["tokens"], len(flat)))
            wanted = [i - first for i in range(part.start, part.stop) if i % n == n - 1]
            logits[done : done + len(wanted)] = model.step(
                flat[part], positions[part], sequences[part], wanted
            )
            done += len(wanted)
        return logits

    def first_token(self, tokens: Sequence[int]) -> int:
        token = next(self.engine.stream(tokens, self._greedy)).token
        assert token is not None  # nobody cancels
        return token

    @property
    def about(self) -> dict[str, str]:
        kernels = sorted({step.kernel.name for step in self.engine.model.steps})
        found = {"assay": version("assay"), "kernels": ", ".join(kernels)}
        model = self.engine.model
        told = {
            "notes": "; ".join(model.notes),
            "sparse": settings(model.config, model.options.sparse),
        }
        return found | {name: words for name, words in told.items() if words}

    def close(self) -> None:
        self.engine.close()


class AssayFast(Assay):
    """The same with weights and their inputs rounded to bfloat16, where that is faster."""

    options: ClassVar[Mapping[str, Any]] = {"numerics": "fast"}
