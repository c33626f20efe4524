"""A plan whose weights are read from disk while it runs."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from engine.graph import Value
from engine.offload.offload import Offload
from engine.plan import Plan, Tuned
from kernels.cpu.runtime.team import Team

Array = np.ndarray[Any, np.dtype[Any]]


class StreamedPlan(Plan):
    """A step of it begins with the rows of embeddings that its tokens need, and runs until all that
    it waited for has come. Raises `OffloadError` where reading failed."""

    def __init__(
        self,
        offload: Offload,
        arrays: Mapping[str, Array],
        limits: Mapping[str, int],
        logits: Value,
        team: Team,
        tuned: Tuned,
        hidden: Value,
    ) -> None:
        stream = offload.stream
        super().__init__(
            offload.steps, arrays, limits, logits, team, stream, tuned=tuned, hidden=hidden
        )
        self.offload, self._tokens = offload, 0

    def resize(self, **sizes: int) -> None:
        super().resize(**sizes)
        self._tokens = sizes["tokens"]

    def run(self) -> None:
        tokens, positions = (
            self.inputs[name][: self._tokens].tolist() for name in ("tokens", "positions")
        )
        self.offload.begin(tokens, positions)
        super().run()
        while not self.offload.came():
            super().run()
