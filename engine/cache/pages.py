"""Pages: which cells each token of an answer reads, where nothing is evicted (docs/decisions/042).

Whole pages of a text have the least and the largest of their keys, channel by channel, made when
their last cell is written. A token of an answer scores them and chooses some; tokens of a prompt
read all. In the graph that is passes/choose_pages.py's.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from engine.cache.method import NEVER, Method, Step
from engine.policies.quest import Quest
from engine.policies.table import text_of
from reference.op import Array


class Pages(Method):
    """From where on the tokens of texts choose: those from `dense_until` on, whose cells are
    `by_choice`. Pages of the first `summed` slots of a sequence have extremes."""

    ends = True

    def __init__(self, policy: Quest, n_sequences: int, capacity: int) -> None:
        self.policy = policy
        self.dense_until = [NEVER] * n_sequences
        self.summed = [0] * n_sequences
        self.by_choice = np.zeros(capacity, np.bool_)
        self._read: list[int] = []  # sequences of the step that runs

    def begin(self, sequence: int, tokens: int) -> None:
        self.dense_until[sequence] = tokens

    def whole(self, sequence: int) -> None:
        self.dense_until[sequence] = NEVER

    def copied(self, source: int, target: int, count: int) -> None:  # noqa: ARG002
        self.dense_until[target], self.summed[target] = self.dense_until[source], 0

    def moved(self, sequence: int, slot: int) -> None:
        self.summed[sequence] = min(self.summed[sequence], slot)

    def removed(self, sequence: int, begin: int, gone: Array) -> None:  # noqa: ARG002
        if gone.any():
            self.moved(sequence, int(gone.argmax()))

    def freed(self, cells: Array) -> None:
        self.by_choice[cells] = False

    def cleared(self) -> None:
        self.dense_until[:] = [NEVER] * len(self.dense_until)

    def reach(self, sequence: int, end: int) -> int:
        """None within what chose its pages."""
        chose = self.by_choice[self.cells.of(sequence)]
        if not chose.any():
            return end
        return min(end, int(self.cells.positions_of(sequence)[chose.argmax()]))

    def most(self, count: int, tokens: int) -> int:
        return max(0, min(count, tokens - 1))

    def is_begun(self, sequence: int) -> bool:
        return self.dense_until[sequence] != NEVER

    def inputs(self, step: Step) -> dict[str, Array]:
        """Spans of tokens that read all and of those that choose, for others empty ones; of each
        sequence the whole pages that have no extremes yet, the first and the end."""
        if "stale" not in step.inputs:  # no block of the step chooses
            return {}
        dense, choosing = step.spans.copy(), step.spans.copy()
        chooses = step.positions >= np.array(self.dense_until)[step.spans[:, 0]]
        self.by_choice[step.cells] = chooses
        dense[chooses, 2] = choosing[~chooses, 2] = 0
        self._read = np.unique(step.spans[:, 0]).tolist()
        stale = self.stale(self._read)
        return {"dense_spans": dense, "choosing_spans": choosing, "stale": stale}

    def stale(self, sequences: Iterable[int]) -> Array:
        """int32 [n_sequences, 2]: of these the whole pages that have no extremes yet."""
        found, page = np.zeros((len(self.summed), 2), np.int32), self.policy.page
        for s in sequences:
            found[s] = self.summed[s] // page, self.cells.lengths[s] // page
        return found

    def ran(self) -> None:
        for s in self._read:
            self.summed[s] = self.cells.lengths[s]

    def session_fields(self, cells: Array) -> dict[str, Any]:  # noqa: ARG002
        return {"kv_policy": text_of(self.policy), "dense_until": self.dense_until[0]}

    def restore(self, cells: Array, header: Mapping[str, Any]) -> None:
        self.dense_until[0] = dense = header["dense_until"]
        self.by_choice[cells[dense:]] = True
