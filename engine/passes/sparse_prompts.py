"""Attention of prompts that sees what an estimate of each head's pattern says (MInference)."""

from dataclasses import replace

import numpy as np

from engine.errors import ModelError
from engine.graph import Graph, Node, Value
from engine.passes import Memory, Pass
from engine.policies.minference import MInference
from reference.attention.pattern_attention import BLOCK
from reference.attention.prompt_patterns import BLOCK_SPARSE, VERTICAL_SLASH
from reference.op import Array

PROMPT, DENSE = "prompt_spans", "dense_spans"  # what tokens see who are read so, and the others


def sparse_prompts(method: MInference, context: int) -> Pass:
    """A pass: behind attention of each block, which leaves them out, the tokens of a stretch of a
    prompt see what their heads' patterns have; checks that it goes with the model."""

    def apply(graph: Graph, memory: Memory) -> tuple[Graph, Memory]:
        attending = [node for node in graph.nodes if node.op == "attention"]
        _check(graph, attending, memory)
        heads = _heads(attending[0])
        patterns = method.patterns(len(attending), heads)
        rows, parts = method.stretch // BLOCK, -(-context // BLOCK)
        spans = {name: Value(name, "input", "i32", ("tokens", 3)) for name in (PROMPT, DENSE)}
        added: Memory = {n: np.zeros((len(memory["tokens"]), 3), np.int32) for n in spans}
        dims = {"sums": (heads, 2, context), "scores": (heads, rows, parts)}
        held = {n: Value(f"prompt.{n}", "cache", "f32", own) for n, own in dims.items()}
        held["sees"] = Value("prompt.sees", "cache", "u8", (heads, rows, context))
        for value in held.values():
            added[value.name] = np.zeros(
                value.sizes({}), np.float32 if value.dtype == "f32" else "u1"
            )
        nodes: list[Node] = []
        for node in graph.nodes:
            if node.op != "attention":
                nodes.append(node)
                continue
            nodes.append(replace(node, arguments={**node.arguments, "spans": spans[DENSE]}))
            kinds, sizes = patterns.pop(0)
            block = _Block(node, spans[PROMPT], held, kinds, sizes)
            nodes += block.nodes(method)
            added |= block.memory
        return replace(graph, nodes=nodes), memory | added

    return apply


def _heads(node: Node) -> int:
    heads = _dims(node, "q")[1]
    assert isinstance(heads, int)
    return heads


def _dims(node: Node, name: str) -> tuple[int | str, ...]:
    value = node.arguments[name]
    assert isinstance(value, Value)
    return value.dims


class _Block:
    """What follows the attention of a block; `memory` has its heads' patterns."""

    def __init__(
        self, node: Node, spans: Value, held: dict[str, Value], kinds: Array, sizes: Array
    ) -> None:
        self._node, self._spans, self._held, self._kinds = node, spans, held, kinds
        self._name = node.label.rpartition(".")[0]
        self.memory: Memory = {f"{self._name}.kinds": kinds, f"{self._name}.sizes": sizes}

    def nodes(self, method: MInference) -> list[Node]:
        made: list[Node] = []
        if (self._kinds == VERTICAL_SLASH).any():
            given = self._given("q", "k", "lists", "scale", "softcap")
            made.append(self._onto("stripe_sums", "sums", {**given, "last": method.observers}))
        if (self._kinds == BLOCK_SPARSE).any():
            made.append(self._onto("block_scores", "scores", self._given("q", "k", "lists")))
        own = {
            name.rpartition(".")[2]: Value(name, "weight", "i32", array.shape)
            for name, array in self.memory.items()
        }
        estimates = {name: self._held[name] for name in ("sums", "scores")}
        ends = {"first": method.first, "recent": method.recent}
        made.append(self._onto("prompt_pattern", "sees", {**own, **estimates, **ends}, ""))
        given = self._given("q", "k", "v", "lists", "scale", "softcap")
        out = self._node.arguments["out"]
        arguments = {**given, "spans": self._spans, "sees": self._held["sees"]}
        arguments |= {"before": out, "out": out}
        made.append(
            Node("pattern_attention", arguments, self._node.format, f"{self._name}.pattern")
        )
        return made

    def _given(self, *names: str) -> dict[str, Value | float]:
        return {name: self._node.arguments[name] for name in names}

    def _onto(
        self, op: str, name: str, given: dict[str, Value | float], format: str | None = None
    ) -> Node:
        """A node that changes what is held of this name."""
        held = self._held[name]
        arguments = {**given, "spans": self._spans, "before": held, "out": held}
        own = self._node.format if format is None else None
        return Node(op, arguments, own, f"{self._name}.{op}")


def _check(graph: Graph, attending: list[Node], memory: Memory) -> None:
    """Raise ModelError where prompts of a model cannot be read so."""
    values = [v for n in graph.nodes for v in n.arguments.values() if isinstance(v, Value)]
    if not attending or any(value.name == "sources" for value in values):
        raise ModelError("prompt_attention: blocks of this model are recurrent: want attention")
    for node in attending:
        block = node.label.rpartition(".")[0]
        given = {n: v.name for n, v in node.arguments.items() if isinstance(v, Value)}
        head_dim = _dims(node, "q")[2]
        if given["spans"] != "spans":
            raise ModelError(f"prompt_attention: {block} sees a window, which is sparse as it is")
        if memory[given["slopes"]].any():
            raise ModelError(f"prompt_attention: {block} has ALiBi: want a model with rope")
        if (memory[given["sinks"]] != -np.inf).any():
            raise ModelError(f"prompt_attention: {block} has sinks, which patterns do not know")
        if not isinstance(head_dim, int) or head_dim % 32 or head_dim > 256:
            raise ModelError(
                f"prompt_attention: heads of {block} have {head_dim} elements: want a multiple of"
                " 32, 256 at most"
            )
        if _dims(node, "q")[1:] != _dims(attending[0], "q")[1:]:
            raise ModelError(f"prompt_attention: {block} has heads unlike those of other blocks")
