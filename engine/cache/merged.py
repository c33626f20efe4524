"""MiniCache: pairs of blocks share merged caches, except for recent tokens (docs/decisions/051).

A token has a cell as usual, with a row in all blocks. Prefill attends to rows. After prefill,
groups of 256 tokens are merged, per pair of blocks, into pages (paged.py), in the step of the first
decode token that attends to them merged; more recent tokens stay in rows. Rows of merged blocks
that no text needs are returned to the system. A prompt that continues a text attends to the pages
that its position in the text allows.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from engine.cache.method import NEVER, Step
from engine.cache.paged import Paged
from engine.cache.release import release
from engine.errors import EngineError
from engine.gpu.memory import DeviceRows
from engine.policies.minicache import MiniCache
from engine.policies.table import format_policy
from reference.formats.minicache import GROUP
from reference.op import Array

ROLLBACK = 64  # tokens by which a text can be rolled back across merged groups
UNKNOWN = -1


class MergedError(EngineError, RuntimeError):
    """A token would attend to rows that have been merged and released."""


class Merged(Paged):
    """Merged pages of the blocks from `first` on.

    In each sequence the tokens after the first `prompt` ones are decoded; those of the prompt
    attend to `prompt_sees` pages, set when its first token is read. `merged` is the sequence's
    number of pages, `answered` the length of its last prompt that has an answer.
    """

    ends_prefill = True

    def __init__(self, policy: MiniCache, first: int, capacity: int, n_sequences: int) -> None:
        super().__init__(capacity, n_sequences, GROUP, capacity // GROUP)
        self.policy, self.block, self.max_decode = policy, first, policy.recent
        self.prompt = [NEVER] * n_sequences
        self.prompt_sees = [UNKNOWN] * n_sequences
        self.merged = [0] * n_sequences
        self.answered = [0] * n_sequences
        self.gone = np.zeros(capacity, np.bool_)  # cells without rows in merged blocks
        self._memory: list[Array] = []  # caches of these blocks in process memory
        self._running: dict[int, int] = {}  # number of pages by sequence, after this step

    def on_compiled(self, caches: Mapping[str, Array | DeviceRows]) -> None:
        """Receive the step's caches, uint8 [capacity, bytes] by name; GPU caches are not
        released."""
        own = {name: rows for name, rows in caches.items() if isinstance(rows, np.ndarray)}
        self._memory = [r for name, r in own.items() if int(name.split(".")[1]) >= self.block]

    def begin(self, sequence: int, tokens: int) -> None:
        self.prompt[sequence], self.prompt_sees[sequence] = tokens, UNKNOWN

    def begin_full(self, sequence: int) -> None:
        self.begin(sequence, NEVER)

    def on_copy(self, source: int, target: int, count: int) -> None:
        self.prompt[target] = self.prompt[source]
        self.prompt_sees[target] = self.prompt_sees[source]
        self.merged[target] = min(self.merged[source], count // GROUP)
        self.answered[target] = self.answered[source]

    def on_remove(self, sequence: int, begin: int, gone: Array) -> None:
        if not gone.any():
            return
        left = int(gone.argmax())
        if left < GROUP * self.merged[sequence] and not gone[left:].all():
            raise ValueError(
                f"positions from {begin} on cannot be dropped without those after them, which are"
                " merged with them"
            )
        self.merged[sequence] = min(self.merged[sequence], left // GROUP)

    def on_free(self, cells: Array) -> None:
        super().on_free(cells)
        self.gone[cells] = False

    def on_clear(self) -> None:
        for sequence in range(len(self.prompt)):
            self.begin_full(sequence)

    def held(self, block: int) -> int:
        return super().held(block) - (int(self.gone.sum()) if block >= self.block else 0)

    def pages_seen(self, ends: Any) -> Any:
        """Number of pages that a decode token attends to, by its index + 1 in the text (`ends`)."""
        return np.maximum(0, np.asarray(ends) - self.policy.recent) // GROUP

    def _pages_of_prompt(self, sequence: int, held: int) -> int:
        """Number of pages that a prompt attends to which continues a text of `held` tokens."""
        return min(int(self.pages_seen(held)), self.merged[sequence])

    def reach(self, sequence: int, end: int) -> int:
        """Not where the continuation needs released rows, nor within a prompt that was answered:
        its own tokens attended to rows that may be merged now."""
        if self.merged[sequence] and end < self.answered[sequence]:
            return 0
        listed = self.cells.list_of(sequence)[:end]
        first = GROUP * self._pages_of_prompt(sequence, len(listed))
        return 0 if self.gone[listed[first:]].any() else end

    def shareable(self, sequence: int, end: int) -> int:
        """Nothing of a merged text: another prompt's tokens would attend to unmerged rows."""
        return 0 if self.merged[sequence] else super().shareable(sequence, end)

    def is_decoding(self, sequence: int) -> bool:
        return self.prompt[sequence] != NEVER

    def is_partial(self, sequence: int) -> bool:
        return self.merged[sequence] > 0

    def inputs(self, step: Step) -> dict[str, Array]:
        """Number of pages and the remaining span for each token; and for each sequence the range of
        groups to merge."""
        if "due" not in step.inputs:  # no blocks of the step are merged
            return {}
        cells, spans = self.cells, step.spans.copy()
        sequences, _, ends = step.spans.T
        if (strange := cells.positions[step.cells] != ends - 1).any():
            at = int(strange.argmax())
            raise MergedError(
                f"position {cells.positions[step.cells[at]]} is number {ends[at]} of its text:"
                " merging needs positions without gaps"
            )
        packed, due = np.zeros(len(spans), np.int32), np.zeros((cells.n_sequences, 2), np.int32)
        self._running = {}
        for sequence in np.unique(sequences).tolist():
            own = np.flatnonzero(sequences == sequence)
            packed[own] = self._seen_by(sequence, ends[own])
            pages, first = int(packed[own].max()), int(ends[own].min()) - 1
            listed = cells.lists[sequence, : int(ends[own].max())]
            if GROUP * pages > first or self.gone[listed[GROUP * int(packed[own].min()) :]].any():
                raise MergedError(
                    f"position {first} would attend to merged tokens: read the text again, with"
                    f" at most {self.max_decode} decode tokens in a step"
                )
            lasts = self._last_cells(listed, pages)
            there = int((self.page_of[lasts] >= 0).sum())
            for cell in lasts[there:].tolist():
                self._allocate_page(cell)
            due[sequence] = there, pages
            self.page_lists[sequence, :pages] = self.page_of[lasts]
            self._running[sequence] = pages
        spans[:, 1] = GROUP * packed
        return {"packed": packed, "unmerged_spans": spans, "due": due}

    def _seen_by(self, sequence: int, ends: Array) -> Array:
        """Number of pages that tokens attend to, by index + 1 in the text (`ends`)."""
        asked = ends <= self.prompt[sequence]
        if asked.any() and self.prompt_sees[sequence] == UNKNOWN:
            self.prompt_sees[sequence] = self._pages_of_prompt(sequence, int(ends.min()) - 1)
        return np.where(asked, self.prompt_sees[sequence], self.pages_seen(ends)).astype(np.int32)

    def after_step(self) -> None:
        """Release rows that no text needs, even after a rollback by ROLLBACK tokens."""
        for sequence, pages in self._running.items():
            self.merged[sequence] = pages
            if self.cells.lengths[sequence] > self.prompt[sequence]:
                self.answered[sequence] = self.prompt[sequence]
        self._running = {}
        cells = self.cells
        if not any(self.merged):
            return
        going = (cells.positions >= 0) & ~self.gone
        for sequence, length in enumerate(cells.lengths):
            pages = self.prompt_sees[sequence]
            if length > self.prompt[sequence] or pages == UNKNOWN:
                pages = self._pages_of_prompt(sequence, max(0, length - ROLLBACK))
            going[cells.list_of(sequence)[GROUP * pages :]] = False
        if going.any():
            self.gone |= going
            for rows in self._memory:
                release(rows, np.flatnonzero(going))

    def session_fields(self, cells: Array) -> dict[str, Any]:
        """Includes the index of the first cell from which on all have rows."""
        lacking = np.flatnonzero(self.gone[cells])
        return {
            "kv_policy": format_policy(self.policy),
            "prompt": self.prompt[0],
            "merged": self.merged[0],
            "answered": self.answered[0],
            "first": int(lacking[-1]) + 1 if len(lacking) else 0,
        }

    def rows_of(self, cells: Array, block: int, fields: Mapping[str, Any]) -> Array:
        return cells[fields["first"] :] if block >= self.block else cells

    def pages_of(self, cells: Array, fields: Mapping[str, Any]) -> Array:
        return self.page_of[self._last_cells(cells, fields["merged"])]

    def restore(self, cells: Array, header: Mapping[str, Any]) -> None:
        self.begin(0, header["prompt"])
        self.merged[0], self.answered[0] = header["merged"], header["answered"]
        self.gone[cells[: header["first"]]] = True
        for cell in self._last_cells(cells, self.merged[0]).tolist():
            self._allocate_page(cell)
