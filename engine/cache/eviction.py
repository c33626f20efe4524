"""Eviction: once a prompt has been read each head of each block keeps what a policy chooses, and
moves it together; the other cells are free (docs/decisions/040).

While a prompt is read, `receiving` has its last tokens say what they look at. Then a plan of its
own scores, chooses and moves, by certified kernels like a step's.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from engine.cache.cells import NOBODY, Cells
from engine.compile.compiler import Compiler
from engine.compile.plan import Plan
from engine.errors import ModelError
from engine.graph import Graph, Node, Value
from engine.passes import Memory, Pass
from engine.policies.policy import Block, Policy
from reference.op import Array

OBSERVED = "observed_spans"  # the input that says which tokens observe, and what each sees


def attending(graph: Graph) -> dict[str, Node]:
    """The nodes that attend, by block."""
    return {n.label.rpartition(".")[0]: n for n in graph.nodes if n.op == "attention"}


def check(policy: Policy, graph: Graph, memory: Memory, context: int) -> None:
    """Raise ModelError where a policy does not go with a model."""
    name = type(policy).__name__
    if policy.capacity >= context:
        raise ModelError(
            f"kv_policy {name} keeps {policy.capacity} cells, which is all of a context of"
            f" {context}: nothing would be evicted"
        )
    for block, node in demand_own_cells(f"kv_policy {name}", graph).items():
        given = node.arguments
        if memory[_name(given["slopes"])].any():
            raise ModelError(
                f"kv_policy {name}: scores of {block} go by distance (ALiBi), which cells that"
                " moved no longer tell: want a model with rope"
            )
        if policy.observers and (memory[_name(given["sinks"])] != -np.inf).any():
            raise ModelError(f"kv_policy {name}: {block} has sinks, which take a part of attention")


def demand_own_cells(what: str, graph: Graph) -> dict[str, Node]:
    """The nodes that attend, by block, if each sees all cells of its own text and these are its
    own; ModelError about `what` needs that where it is not so."""
    blocks = attending(graph)
    recurrent = [v for n in graph.nodes for v in n.arguments.values() if _name(v) == "sources"]
    if recurrent or not blocks:
        raise ModelError(f"{what}: blocks of this model are recurrent, not cells of keys")
    for block, node in blocks.items():
        given = node.arguments
        if (_name(given["k"]), _name(given["v"])) != (f"{block}.k_cache", f"{block}.v_cache"):
            raise ModelError(f"{what}: {block} has no keys and values of its own to choose among")
        if _name(given["spans"]) != "spans":
            raise ModelError(f"{what}: {block} sees a window of the text as it is")
    return blocks


def _name(value: Value | float) -> str:
    return value.name if isinstance(value, Value) else ""


def receiving(policy: Policy, sequences: int, context: int) -> Pass:
    """A pass: beside attention of each block what cells receive of it is added up, where the policy
    has observers; checks that it goes with the model."""

    def apply(graph: Graph, memory: Memory) -> tuple[Graph, Memory]:
        check(policy, graph, memory, context)
        if not policy.observers:
            return graph, memory
        nodes: list[Node] = []
        spans = Value(OBSERVED, "input", "i32", ("tokens", 3))
        added: Memory = {OBSERVED: np.zeros((len(memory["tokens"]), 3), np.int32)}
        for node in graph.nodes:
            nodes.append(node)
            if node.op != "attention":
                continue
            name = f"{node.label.rpartition('.')[0]}.received"
            dims = sequences, kv_heads_of(node), context
            total = Value(name, "cache", "f32", dims)
            added[name] = np.zeros(dims, np.float32)
            shared = ("q", "k", "lists", "scale", "softcap")
            arguments = {key: node.arguments[key] for key in shared}
            arguments |= {"spans": spans, "before": total, "out": total}
            nodes.append(Node("attention_received", arguments, node.format, name))
        return replace(graph, nodes=nodes), memory | added

    return apply


def kv_heads_of(node: Node) -> int:
    q, k = node.arguments["q"], node.arguments["k"]
    assert isinstance(q, Value)
    assert isinstance(k, Value)
    width, head_dim = k.dims[1], q.dims[2]
    assert isinstance(width, int)
    assert isinstance(head_dim, int)
    return width // head_dim


class Eviction:
    """What a policy does to the texts of one model: `begin` before a prompt is read, `finish` when
    it has been.

    `kept` has the slots that heads kept of the text before they moved, int32 [kv_heads, capacity],
    by block, of the text that was evicted last.
    """

    def __init__(
        self, policy: Policy, graph: Graph, memory: Memory, cells: Cells, compiler: Compiler
    ) -> None:
        self.policy, self._cells, self._blocks = policy, cells, attending(graph)
        heads = {block: kv_heads_of(node) for block, node in self._blocks.items()}
        self._received = {b: memory[f"{b}.received"] for b in heads} if policy.observers else {}
        self._inputs: Memory = {
            "cells": np.zeros(cells.capacity, np.int32),
            "into": np.zeros(policy.capacity, np.int32),
        }
        self.kept: Mapping[str, Array] = {
            block: np.zeros((count, policy.capacity), np.int32) for block, count in heads.items()
        }
        for block, count in heads.items():
            scores = np.zeros(count * cells.capacity, np.float32)
            self._inputs[f"{block}.scores"] = scores
        evicting, last = self._graph(heads)
        own = {f"{block}.kept": slots for block, slots in self.kept.items()}
        caches = {v.name: memory[v.name] for n in evicting.nodes for v in _caches(n)}
        self._plan: Plan = compiler.beside(
            evicting, {**self._inputs, **own, **caches}, {"held": cells.capacity}, last
        )

    def _graph(self, heads: Mapping[str, int]) -> tuple[Graph, Value]:
        """What is done to all blocks, and the last value of it."""
        graph, policy = Graph(), self.policy
        cells = Value("cells", "input", "i32", ("held",))
        into = Value("into", "input", "i32", (policy.capacity,))
        for block, kv_heads in heads.items():
            keys, values = (self._blocks[block].arguments[name] for name in ("k", "v"))
            assert isinstance(keys, Value)
            assert isinstance(values, Value)
            scores = Value(f"{block}.scores", "input", "f32", (kv_heads, "held"))
            own = Block(block, keys, cells, scores, kv_heads)
            slots = Value(f"{block}.kept", "cache", "i32", (kv_heads, policy.capacity))
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
        return graph, slots

    def begin(self, sequence: int, tokens: int) -> None:
        """A prompt of so many tokens will be read into a sequence."""
        if self.policy.observers:
            self._cells.observed_from[sequence] = max(0, tokens - self.policy.observers)
            for received in self._received.values():
                received[sequence] = 0

    def wanted(self, sequence: int) -> int:
        """How many free cells `finish` will want."""
        count = self.policy.capacity
        evicts = self._cells.lengths[sequence] > count
        return self._cells.wanted_to_keep(sequence, count) if evicts else 0

    def finish(self, sequence: int) -> None:
        """It has been read: what is not kept goes."""
        cells = self._cells
        cells.observed_from[sequence] = NOBODY
        if (held := cells.lengths[sequence]) <= self.policy.capacity:
            return
        into = cells.room_for_kept(sequence, self.policy.capacity)
        self._inputs["cells"][:held] = cells.of(sequence)
        self._inputs["into"][:] = into
        for block, received in self._received.items():
            own = received[sequence, :, :held]
            self._inputs[f"{block}.scores"][: own.size] = own.reshape(-1)
        self._plan.resize(held=held)
        self._plan.run()
        cells.keep(sequence, into)


def _caches(node: Node) -> list[Value]:
    if node.op != "kv_keep":
        return []
    cache = node.arguments["before"]
    assert isinstance(cache, Value)
    return [cache]
