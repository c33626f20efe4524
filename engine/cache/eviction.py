"""KV cache eviction: after prefill each head of each block keeps the cells that a policy selects,
compacted; the other cells are freed (docs/decisions/040). Kept cells are aligned to the end of the
text, so that blocks which keep fewer begin later (docs/decisions/041).

During prefill a pass (passes/receive.py) records the attention of the prompt's last tokens. Then a
separate plan scores, selects and moves, with certified kernels.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from engine.cache.method import NEVER, CacheMethod, Step
from engine.cache.release import release
from engine.compile.build import Kept
from engine.compile.compiler import Compiler
from engine.gpu.between_steps import caches_of
from engine.graph import Graph, Value
from engine.passes import Memory
from engine.passes.attending import attending, heads_of
from engine.passes.receive import OBSERVED, SPANS
from engine.policies.policy import Block, Policy
from engine.policies.table import format_policy
from reference.op import Array


class Eviction(CacheMethod):
    """A policy applied to one model's sequences, once it is compiled.

    In an evicted sequence all positions below `evicted` were freed or moved; block i has its cells
    from index `begins[sequence, i]` of the sequence's list on. Tokens from `observed_from` on are
    the observation window.

    `kept`, by block, are the indices that heads kept in the last evicted text before compaction,
    int32 [kv_heads, kept].
    """

    evicts = ends_prefill = True

    def __init__(self, policy: Policy, n_sequences: int, blocks: int) -> None:
        self.policy, self.observers = policy, policy.observers
        self.evicted = [0] * n_sequences
        self.begins = np.zeros((n_sequences, blocks), np.int32)
        self.observed_from = [NEVER] * n_sequences

    def compile(self, graph: Graph, memory: Memory, compiler: Compiler) -> None:
        """Compile the plan for a model's step graph; caches on a GPU are processed there."""
        policy, self._blocks = self.policy, attending(graph)
        self._heads = {block: heads_of(node).kv_heads for block, node in self._blocks.items()}
        held: Kept = {**memory, **compiler.there}
        self._received = [held[f"{b}.received"] for b in self._heads if policy.observers]
        self.kept: dict[str, Array] = {}
        most, capacity = max(self._heads.values()), self.cells.capacity
        inputs: Memory = {
            "cells": np.zeros(capacity, np.int32),
            "into": np.zeros(capacity, np.int32),
            "scores": np.zeros(most * capacity, np.float32),
            "slots": np.zeros(most * capacity, np.int32),
        }
        evicting, starts, last = self._graph()
        names = caches_of(evicting.nodes) - compiler.there.keys()
        self._caches = {name: memory[name] for name in names}
        limits = {"held": capacity, "kept": capacity}
        given = {**inputs, **self._caches}
        self._beside = compiler.beside(evicting, given, limits, last, starts[1:])

    def _graph(self) -> tuple[Graph, list[int], Value]:
        """The graph for all blocks, the index of each block's first node, and its last value."""
        graph, starts, policy = Graph(), list[int](), self.policy
        cells = Value("cells", "input", "i32", ("held",))
        into = Value("into", "input", "i32", ("kept",))
        for block, kv_heads in self._heads.items():
            starts.append(len(graph.nodes))
            keys, values = self._caches_of(block)
            scores = Value("scores", "input", "f32", (kv_heads, "held"))
            own = Block(block, keys, cells, scores, kv_heads)
            slots = Value("slots", "input", "i32", (kv_heads, "kept"))
            graph(
                "keep_top",
                f"{block}.kept",
                out=slots,
                scores=policy.scores(graph, own),
                kept=policy.capacity,
                first=policy.first,
                last=policy.last,
            )
            for cache in (keys, values):
                graph(
                    "kv_keep",
                    f"{cache.name}_kept",
                    out=cache,
                    slots=slots,
                    cells=cells,
                    into=into,
                    before=cache,
                )
        return graph, starts, slots

    def _caches_of(self, block: str) -> tuple[Value, Value]:
        node = self._blocks[block]
        return node.value("k"), node.value("v")

    def begin(self, sequence: int, tokens: int) -> None:
        """A prompt of `tokens` will be prefilled."""
        if self.policy.observers:
            self.observed_from[sequence] = max(0, tokens - self.policy.observers)
            for received in self._received:
                received[sequence] = 0

    def cells_needed(self, sequence: int) -> int:
        kept = self._cells_kept(sequence)
        return self.cells.cells_to_compact(sequence, max(kept)) if kept else 0

    def _cells_kept(self, sequence: int) -> list[int]:
        """Number of cells that each block will keep; empty if nothing changes."""
        length, blocks = self.cells.lengths[sequence], len(self._blocks)
        held = [length - begin for begin in self.begins[sequence, :blocks].tolist()]
        kept = [min(two) for two in zip(held, self.policy.kept(blocks, max(held)), strict=True)]
        return kept if kept != held else []

    def finish(self, sequence: int) -> None:
        """Evict what the policy does not keep."""
        cells = self.cells
        self.observed_from[sequence] = NEVER
        if not (kept := self._cells_kept(sequence)):
            return
        into, own = cells.compaction_targets(sequence, max(kept)), cells.list_of(sequence).copy()
        begins, stays = self.begins[sequence].copy(), into[-1] == own[-1]
        for i, (block, count) in enumerate(zip(self._heads, kept, strict=True)):
            held = own[begins[i] :]
            if stays and len(held) == count:
                self.kept[block] = np.tile(np.arange(count), (self._heads[block], 1))
            else:
                self._move(sequence, i, held, into[len(into) - count :])
        begins[: len(kept)] = len(into) - np.array(kept)
        self.compact(sequence, into, begins)
        gone = own[cells.positions[own] < 0]
        for block, begin in zip(self._blocks, begins, strict=False):
            for cache in self._caches_of(block):
                if cache.name in self._caches:  # GPU memory is not released
                    release(self._caches[cache.name], np.append(gone, into[:begin]))

    def compact(self, sequence: int, into: Array, begins: Array | int = 0) -> None:
        """Make `into` the sequence's only cells, used by the blocks from `begins` on."""
        self.cells.compact(sequence, into)
        self.evicted[sequence] = self.cells.next_position(sequence)
        self.begins[sequence] = begins

    def on_copy(self, source: int, target: int, count: int) -> None:  # noqa: ARG002
        self.evicted[target], self.begins[target] = self.evicted[source], self.begins[source]

    def on_remove(self, sequence: int, begin: int, gone: Array) -> None:
        if gone.all():
            self.evicted[sequence], self.begins[sequence] = 0, 0
        elif gone.any() and begin < self.evicted[sequence]:
            raise ValueError(
                f"positions from {begin} on cannot be dropped alone: up to"
                f" {self.evicted[sequence]} cells were evicted"
            )

    def first(self, sequence: int, block: int) -> int:
        return int(self.begins[sequence, block])

    def held(self, block: int) -> int:
        own = np.flatnonzero(self.begins[:, block]).tolist()
        if not own:  # asked for each token: nothing is looked through where nothing is empty
            return super().held(block)
        empty = np.concatenate([self.cells.list_of(s)[: self.begins[s, block]] for s in own])
        return super().held(block) - len(np.unique(empty))

    def reach(self, sequence: int, end: int) -> int:
        """Not within the evicted part or the observation window."""
        if self.evicted[sequence]:
            return end if end >= self.evicted[sequence] else 0
        return min(end, self.observed_from[sequence])

    def shareable(self, sequence: int, end: int) -> int:
        """Nothing of an evicted text, which is incomplete."""
        return 0 if self.evicted[sequence] else super().shareable(sequence, end)

    def max_shared(self, count: int, tokens: int) -> int:
        return max(0, min(count, tokens - max(1, self.observers)))

    def is_decoding(self, sequence: int) -> bool:
        return self.evicted[sequence] > 0

    def is_partial(self, sequence: int) -> bool:
        return self.evicted[sequence] > 0

    def inputs(self, step: Step) -> dict[str, Array]:
        """Spans for all blocks, or per block, from its first kept cell on; and those of observing
        tokens, empty for others."""
        observed = step.spans.copy()
        first = np.array(self.observed_from)[step.spans[:, 0]]
        observed[step.positions < first, 2] = 0
        found, seen = {}, {SPANS: step.spans, OBSERVED: observed}
        for name in step.inputs:
            kind, _, block = name.partition(".")
            if kind in seen:
                found[name] = self._cut_to_kept(seen[kind], int(block)) if block else seen[kind]
        return found

    def _cut_to_kept(self, spans: Array, block: int) -> Array:
        """The spans cut to the block's kept cells."""
        seen = spans.copy()
        seen[:, 1] = np.minimum(self.begins[spans[:, 0], block], spans[:, 2])
        return seen

    def session_fields(self, cells: Array) -> dict[str, Any]:  # noqa: ARG002
        state = {"kv_policy": format_policy(self.policy), "evicted": self.evicted[0]}
        begins = self.begins[0].tolist()
        return state | ({"begins": begins} if any(begins) else {})

    def rows_of(self, cells: Array, block: int, fields: Mapping[str, Any]) -> Array:
        begins = fields.get("begins")
        return cells[begins[block] :] if begins else cells

    def restore(self, cells: Array, header: Mapping[str, Any]) -> None:  # noqa: ARG002
        self.evicted[0], self.begins[0] = header["evicted"], header.get("begins", 0)

    def _move(self, sequence: int, i: int, held: Array, into: Array) -> None:
        """Select what block i keeps of `held` cells, and move it to `into`."""
        block, inputs, count = list(self._heads)[i], self._beside.inputs, len(into)
        heads, length = self._heads[block], self.cells.lengths[sequence]
        inputs["cells"][: len(held)] = held
        inputs["into"][:count] = into
        if self._received:
            received = self._received[i][sequence].reshape(-1).view(np.float32).reshape(heads, -1)
            own = received[:, length - len(held) : length]
            inputs["scores"][: own.size] = own.reshape(-1)
        self._beside.run(i, {"held": len(held), "kept": count}, f"{block}.kept", "kept")
        self.kept[block] = inputs["slots"][: heads * count].reshape(heads, count).copy()
