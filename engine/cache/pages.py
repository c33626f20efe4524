"""Quest: each decode token attends to selected pages; nothing is evicted (docs/decisions/042).

Complete pages of a text have the minimum and maximum of their keys per channel, computed when
their last cell is written. Decode tokens score pages by these and select some; prefill attends to
all. passes/choose_pages.py adds the nodes.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from engine.cache.method import NEVER, CacheMethod, Step
from engine.policies.quest import Quest
from engine.policies.table import format_policy
from reference.op import Array


class Pages(CacheMethod):
    """Tokens from position `dense_until` on select pages; their cells are marked in `by_choice`.
    Pages within a sequence's first `summed` cells have extremes."""

    ends_prefill = True

    def __init__(self, policy: Quest, n_sequences: int, capacity: int) -> None:
        self.policy = policy
        self.dense_until = [NEVER] * n_sequences
        self.summed = [0] * n_sequences
        self.by_choice = np.zeros(capacity, np.bool_)
        self._read: list[int] = []  # sequences of the current step

    def begin(self, sequence: int, tokens: int) -> None:
        self.dense_until[sequence] = tokens

    def begin_full(self, sequence: int) -> None:
        self.dense_until[sequence] = NEVER

    def on_copy(self, source: int, target: int, count: int) -> None:  # noqa: ARG002
        self.dense_until[target], self.summed[target] = self.dense_until[source], 0

    def on_move(self, sequence: int, slot: int) -> None:
        self.summed[sequence] = min(self.summed[sequence], slot)

    def on_remove(self, sequence: int, begin: int, gone: Array) -> None:  # noqa: ARG002
        if gone.any():
            self.on_move(sequence, int(gone.argmax()))

    def on_free(self, cells: Array) -> None:
        self.by_choice[cells] = False

    def on_clear(self) -> None:
        self.dense_until[:] = [NEVER] * len(self.dense_until)

    def reach(self, sequence: int, end: int) -> int:
        """Not after the first token that selected its pages."""
        chose = self.by_choice[self.cells.list_of(sequence)]
        if not chose.any():
            return end
        return min(end, int(self.cells.positions_of(sequence)[chose.argmax()]))

    def max_shared(self, count: int, tokens: int) -> int:
        return max(0, min(count, tokens - 1))

    def is_decoding(self, sequence: int) -> bool:
        return self.dense_until[sequence] != NEVER

    def inputs(self, step: Step) -> dict[str, Array]:
        """Spans of tokens that attend to all and of those that select pages, each empty for the
        others; and for each sequence the range of complete pages without extremes."""
        if "stale" not in step.inputs:  # no block selects pages
            return {}
        dense, choosing = step.spans.copy(), step.spans.copy()
        chooses = step.positions >= np.array(self.dense_until)[step.spans[:, 0]]
        self.by_choice[step.cells] = chooses
        dense[chooses, 2] = choosing[~chooses, 2] = 0
        self._read = np.unique(step.spans[:, 0]).tolist()
        stale = self.stale(self._read)
        return {"dense_spans": dense, "choosing_spans": choosing, "stale": stale}

    def stale(self, sequences: Iterable[int]) -> Array:
        """int32 [n_sequences, 2]: for these sequences the range of pages without extremes."""
        found, page = np.zeros((len(self.summed), 2), np.int32), self.policy.page
        for s in sequences:
            found[s] = self.summed[s] // page, self.cells.lengths[s] // page
        return found

    def after_step(self) -> None:
        for s in self._read:
            self.summed[s] = self.cells.lengths[s]

    def session_fields(self, cells: Array) -> dict[str, Any]:  # noqa: ARG002
        return {"kv_policy": format_policy(self.policy), "dense_until": self.dense_until[0]}

    def restore(self, cells: Array, header: Mapping[str, Any]) -> None:
        self.dense_until[0] = dense = header["dense_until"]
        self.by_choice[cells[dense:]] = True
