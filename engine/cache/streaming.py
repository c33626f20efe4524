"""Streaming heads keep the first cells of a text and the latest; the others keep all
(docs/decisions/050).

A token has a cell as ever, in the caches of the heads that keep all. Those that stream have caches
of their own with few rows, of which a cell has one as long as some text needs it. What a token sees
of them goes by its place in the text alone, so that neither chunks nor company change a bit.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from engine.cache.method import Method, Step
from engine.cache.rows import NONE, Rows
from engine.errors import EngineError
from engine.policies.duo_attention import DuoAttention
from engine.policies.table import text_of
from reference.op import Array

STREAMING = ".attention_streaming"  # how labels of nodes end that attend for such heads
BACK = 64  # rows that a text keeps beyond those it needs, so as to be taken back a little


class StreamedError(EngineError, RuntimeError):
    """A token that would go on from cells which streaming heads have let go."""


class Streaming(Method):
    """Rows for up to `n_sequences` texts in steps of at most `tokens`. Those tokens of a step that
    follow one another in a text, and whose windows begin alike, have a list in common. In a row of
    `lists` there are `in_one` of these one behind the other."""

    def __init__(self, policy: DuoAttention, capacity: int, n_sequences: int, tokens: int) -> None:
        self.policy = policy
        self.rows_held = Rows(rows_for(policy, capacity, n_sequences, tokens), capacity)
        self.in_one = max(1, self.rows_held.count // policy.seen)
        self.lists = np.zeros((-(-tokens // self.in_one), self.rows_held.count), np.int32)
        self.positions = np.zeros(self.rows_held.count, np.int32)
        self.streaming = np.zeros((0, 0), np.bool_)  # heads of the model, by block

    @property
    def packed(self) -> int:
        return self.rows_held.held

    def before(self) -> None:
        """Let rows go that no text needs to go on, or to be taken back by BACK tokens."""
        needed, cells = np.zeros(len(self.rows_held.of), np.bool_), self.cells
        for sequence, length in enumerate(cells.lengths):
            if length:
                own = cells.of(sequence)
                needed[own[: self.policy.sinks]] = True
                needed[own[max(0, int(self._begins(length + 1)) - BACK) :]] = True
        self.rows_held.keep(needed)

    def _begins(self, ends: Any) -> Any:
        """At which slot the windows of tokens begin that are the last of so many of their text."""
        stride = self.policy.stride
        return np.maximum(self.policy.sinks, (ends - self.policy.recent) // stride * stride)

    def inputs(self, step: Step) -> dict[str, Array]:
        """The new cells' rows, and of each token which it sees, as a part of a list. The lists are
        written."""
        if "streaming_cells" not in step.inputs:  # no head of the step streams
            return {}
        new, (sequences, _, ends) = self._hold(step.cells), step.spans.T
        begins, spans = self._begins(ends), np.zeros_like(step.spans)
        parts = np.flatnonzero((np.diff(sequences) != 0) | (np.diff(begins) != 0)) + 1
        for i, (first, last) in enumerate(pairwise([0, *parts.tolist(), len(ends)])):
            begin = int(begins[first])
            slots = self._slots(begin, int(ends[first:last].max()))
            rows = self.rows_held.of[self.cells.lists[sequences[first], slots]]
            if (rows == NONE).any():
                raise StreamedError(
                    f"position {step.positions[first]} goes on from cells that streaming heads have"
                    " let go: read the text anew"
                )
            at, start = i // self.in_one, i % self.in_one * self.policy.seen
            self.lists[at, start : start + len(rows)] = rows
            seen = ends[first:last] - begin + self.policy.sinks
            spans[first:last, 0], spans[first:last, 1] = at, start
            spans[first:last, 2] = start + seen
        return {"streaming_cells": new, "streaming_spans": spans}

    def _slots(self, begin: int, end: int) -> Array:
        """The sinks, and a window from one slot to another."""
        return np.append(np.arange(min(self.policy.sinks, end)), np.arange(begin, end))

    def reach(self, sequence: int, end: int) -> int:
        """Within the sinks, or where all that what follows sees is there."""
        own = self.rows_held.of[self.cells.of(sequence)[:end]]
        if (own[self._needed(len(own))] != NONE).all():
            return end
        return min(end, self.policy.sinks)

    def _needed(self, length: int) -> Array:
        """The slots of a text that its next token sees beside its own, or a session keeps."""
        return self._slots(int(self._begins(length + 1)), length)

    def removed(self, sequence: int, begin: int, gone: Array) -> None:  # noqa: ARG002
        if gone.any() and not gone[gone.argmax() :].all():
            raise ValueError(
                f"positions from {begin} on cannot be dropped without those after them, of which"
                " streaming heads see the latest"
            )

    def freed(self, cells: Array) -> None:
        self.rows_held.let_go(cells)

    def seen(self, sequence: int, node: str, block: int) -> int:
        held = super().seen(sequence, node, block)
        return len(self._needed(held)) if node.endswith(STREAMING) else held

    def session_fields(self, cells: Array) -> dict[str, Any]:
        """Which heads stream is part of it, not what the file is called that says so."""
        if len(cells) and (self.rows_held.of[cells[self._needed(len(cells))]] == NONE).any():
            raise StreamedError("streaming heads have let cells of the text go: read it anew")
        which = hashlib.sha256(np.packbits(self.streaming).tobytes()).hexdigest()[:16]
        return {"kv_policy": text_of(replace(self.policy, heads=which))}

    def pages_of(self, cells: Array, fields: Mapping[str, Any]) -> Array:  # noqa: ARG002
        return self.rows_held.of[cells[self._needed(len(cells))]]

    def restore(self, cells: Array, header: Mapping[str, Any]) -> None:  # noqa: ARG002
        self._hold(cells[self._needed(len(cells))])

    def _hold(self, cells: Array) -> Array:
        rows = self.rows_held.hold(cells)
        self.positions[rows] = self.cells.positions[cells]
        return rows


def rows_for(policy: DuoAttention, capacity: int, n_sequences: int, tokens: int) -> int:
    """As many as texts keep between two steps, and a step's tokens."""
    return min(capacity, n_sequences * (policy.seen + BACK) + tokens)
