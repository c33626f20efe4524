"""Streaming heads keep the first cells of a text and the latest; the others keep all
(docs/decisions/050).

A token has a cell as ever, in the caches of the heads that keep all. Those that stream have caches
of their own with few rows, of which a cell has one as long as some text needs it. What a token sees
of them goes by its place in the text alone, so that neither chunks nor company change a bit.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
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
    """Rows for up to `n_sequences` texts in steps of at most `tokens`. Each token of a step has a
    list of its own in `lists`, `in_one` of them one behind the other in each row of it."""

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
                needed[own[max(0, length - self.policy.recent - BACK) :]] = True
        self.rows_held.keep(needed)

    def inputs(self, step: Step) -> dict[str, Array]:
        """The new cells' rows, and of each token which it sees, in its own list. The lists are
        written."""
        if "streaming_cells" not in step.inputs:  # no head of the step streams
            return {}
        rows, seen, count = self.rows_held, self.policy.seen, len(step.spans)
        new = self._hold(step.cells)
        sequences, _, ends = step.spans.T
        beyond = np.maximum(0, ends - seen)[:, None]  # what lies between the sinks and the latest
        slots = np.arange(seen)
        slots = slots + beyond * (slots >= self.policy.sinks)
        sees = slots < ends[:, None]
        listed = self.cells.lists[sequences[:, None], np.where(sees, slots, 0)]
        own = rows.of[listed]
        if (sees & (own == NONE)).any():
            at = int((sees & (own == NONE)).any(axis=1).argmax())
            raise StreamedError(
                f"position {step.positions[at]} goes on from cells that streaming heads have let"
                " go: read the text anew"
            )
        which, starts = np.divmod(np.arange(count), self.in_one)
        starts *= seen
        self.lists[which[:, None], starts[:, None] + np.arange(seen)] = own
        spans = np.stack([which, starts, starts + np.minimum(ends, seen)], axis=1)
        return {"streaming_cells": new, "streaming_spans": spans.astype(np.int32)}

    def reach(self, sequence: int, end: int) -> int:
        """Within the sinks, or where all that what follows sees is there."""
        own = self.rows_held.of[self.cells.of(sequence)[:end]]
        if (own[self._needed(len(own))] != NONE).all():
            return end
        return min(end, self.policy.sinks)

    def _needed(self, length: int) -> Array:
        """The slots of a text that its next token sees beside its own, or a session keeps."""
        sinks, recent = self.policy.sinks, self.policy.recent
        latest = np.arange(max(sinks, length - recent + 1), length)
        return np.append(np.arange(min(sinks, length)), latest)

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
        return min(held, self.policy.seen - 1) if node.endswith(STREAMING) else held

    def told(self, cells: Array) -> dict[str, Any]:
        """Which heads stream is part of it, not what the file is called that says so."""
        if len(cells) and (self.rows_held.of[cells[self._needed(len(cells))]] == NONE).any():
            raise StreamedError("streaming heads have let cells of the text go: read it anew")
        which = hashlib.sha256(np.packbits(self.streaming).tobytes()).hexdigest()[:16]
        return {"kv_policy": text_of(replace(self.policy, heads=which))}

    def pages_of(self, cells: Array) -> Array:
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
