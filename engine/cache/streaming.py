"""DuoAttention: streaming heads keep a text's first cells (sinks) and the latest; retrieval heads
keep all (docs/decisions/050).

A token has a cell as usual, in the caches of the retrieval heads. Streaming heads have separate
caches with few rows; a cell has one as long as some text needs it. Which rows a token attends to
depends only on its position in the text, so chunking and batching do not change results.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from engine.cache.method import CacheMethod, Step
from engine.cache.rows import NONE, Rows
from engine.errors import EngineError
from engine.policies.duo_attention import DuoAttention
from engine.policies.table import format_policy
from reference.op import Array

STREAMING = ".attention_streaming"  # suffix of the labels of streaming heads' attention nodes
ROLLBACK = 64  # extra rows per text, for rollback


class StreamedError(EngineError, RuntimeError):
    """A token would attend to cells that streaming heads have evicted."""


class Streaming(CacheMethod):
    """Rows for up to `n_sequences` texts in steps of at most `tokens`. Consecutive tokens of a text
    whose windows begin at the same cell share a list; a row of `lists` holds `in_one` lists."""

    def __init__(self, policy: DuoAttention, capacity: int, n_sequences: int, tokens: int) -> None:
        self.policy = policy
        self.rows_held = Rows(rows_for(policy, capacity, n_sequences, tokens), capacity)
        self.in_one = max(1, self.rows_held.count // policy.max_seen)
        self.lists = np.zeros((-(-tokens // self.in_one), self.rows_held.count), np.int32)
        self.positions = np.zeros(self.rows_held.count, np.int32)
        self.streaming = np.zeros((0, 0), np.bool_)  # heads of the model, by block

    @property
    def packed(self) -> int:
        return self.rows_held.held

    def before_step(self) -> None:
        """Free rows that no text needs, even after a rollback by ROLLBACK tokens."""
        needed, cells = np.zeros(len(self.rows_held.row_of), np.bool_), self.cells
        for sequence, length in enumerate(cells.lengths):
            if length:
                own = cells.list_of(sequence)
                needed[own[: self.policy.sinks]] = True
                needed[own[max(0, int(self._begins(length + 1)) - ROLLBACK) :]] = True
        self.rows_held.retain(needed)

    def _begins(self, ends: Any) -> Any:
        """Index of the first cell in the window of a token, by its index + 1 in the text
        (`ends`)."""
        stride = self.policy.stride
        return np.maximum(self.policy.sinks, (ends - self.policy.recent) // stride * stride)

    def inputs(self, step: Step) -> dict[str, Array]:
        """Rows of the new cells, and spans in `lists`, which are filled."""
        if "streaming_cells" not in step.inputs:  # no streaming heads
            return {}
        new, (sequences, _, ends) = self._hold(step.cells), step.spans.T
        begins, spans = self._begins(ends), np.zeros_like(step.spans)
        parts = np.flatnonzero((np.diff(sequences) != 0) | (np.diff(begins) != 0)) + 1
        for i, (first, last) in enumerate(pairwise([0, *parts.tolist(), len(ends)])):
            begin = int(begins[first])
            slots = self._slots(begin, int(ends[first:last].max()))
            rows = self.rows_held.row_of[self.cells.lists[sequences[first], slots]]
            if (rows == NONE).any():
                raise StreamedError(
                    f"position {step.positions[first]} would attend to cells that streaming heads"
                    " have evicted: read the text again"
                )
            at, start = i // self.in_one, i % self.in_one * self.policy.max_seen
            self.lists[at, start : start + len(rows)] = rows
            seen = ends[first:last] - begin + self.policy.sinks
            spans[first:last, 0], spans[first:last, 1] = at, start
            spans[first:last, 2] = start + seen
        return {"streaming_cells": new, "streaming_spans": spans}

    def _slots(self, begin: int, end: int) -> Array:
        """List indices of the sinks and of the window [begin, end)."""
        return np.append(np.arange(min(self.policy.sinks, end)), np.arange(begin, end))

    def reach(self, sequence: int, end: int) -> int:
        """Within the sinks, or where all rows that the continuation needs are present."""
        own = self.rows_held.row_of[self.cells.list_of(sequence)[:end]]
        if (own[self._needed(len(own))] != NONE).all():
            return end
        return min(end, self.policy.sinks)

    def _needed(self, length: int) -> Array:
        """List indices that a text's next token attends to (besides itself), and sessions save."""
        return self._slots(int(self._begins(length + 1)), length)

    def on_remove(self, sequence: int, begin: int, gone: Array) -> None:  # noqa: ARG002
        if gone.any() and not gone[gone.argmax() :].all():
            raise ValueError(
                f"positions from {begin} on cannot be dropped without those after them: streaming"
                " heads keep the latest ones"
            )

    def on_free(self, cells: Array) -> None:
        self.rows_held.free(cells)

    def seen(self, sequence: int, node: str, block: int) -> int:
        held = super().seen(sequence, node, block)
        return len(self._needed(held)) if node.endswith(STREAMING) else held

    def session_fields(self, cells: Array) -> dict[str, Any]:
        """The policy is identified by the streaming heads themselves, not by their file's name."""
        if len(cells) and (self.rows_held.row_of[cells[self._needed(len(cells))]] == NONE).any():
            raise StreamedError("streaming heads have evicted cells of the text: read it again")
        which = hashlib.sha256(np.packbits(self.streaming).tobytes()).hexdigest()[:16]
        return {"kv_policy": format_policy(replace(self.policy, heads=which))}

    def pages_of(self, cells: Array, fields: Mapping[str, Any]) -> Array:  # noqa: ARG002
        return self.rows_held.row_of[cells[self._needed(len(cells))]]

    def restore(self, cells: Array, header: Mapping[str, Any]) -> None:  # noqa: ARG002
        self._hold(cells[self._needed(len(cells))])

    def _hold(self, cells: Array) -> Array:
        rows = self.rows_held.allocate(cells)
        self.positions[rows] = self.cells.positions[cells]
        return rows


def rows_for(policy: DuoAttention, capacity: int, n_sequences: int, tokens: int) -> int:
    """Number of rows: those that texts keep between steps, and a step's tokens."""
    return min(capacity, n_sequences * (policy.max_seen + ROLLBACK) + tokens)
