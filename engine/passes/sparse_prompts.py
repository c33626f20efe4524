"""A pass in which prompts attend by estimated per-head sparse patterns (MInference)."""

import numpy as np

from engine.errors import ModelError
from engine.graph import Graph, Node, Value
from engine.passes import Memory, Pass, spans, zeros
from engine.passes.attending import demand_attention, heads_of
from engine.policies.minference import MInference
from reference.attention.pattern_attention import BLOCK
from reference.attention.prompt_patterns import BLOCK_SPARSE, VERTICAL_SLASH
from reference.op import Array

PROMPT, DENSE = (
    "prompt_spans",
    "dense_spans",
)  # spans of tokens that attend by patterns, and of the others


def sparse_prompts(method: MInference, context: int) -> Pass:
    """After attention of each block, which skips them, tokens of a prompt's stretch attend by their
    heads' patterns; checks that the policy suits the model."""

    def apply(graph: Graph, memory: Memory) -> tuple[Graph, Memory]:
        blocks = _demand_readable(graph, memory)
        heads = heads_of(next(iter(blocks.values()))).heads
        patterns = dict(zip(blocks, method.patterns(len(blocks), heads), strict=True))
        rows, parts = method.stretch // BLOCK, -(-context // BLOCK)
        prompt, dense = spans(PROMPT), spans(DENSE)
        held = {
            "sums": Value("prompt.sums", "cache", "f32", (heads, 2, context)),
            "scores": Value("prompt.scores", "cache", "f32", (heads, rows, parts)),
            "sees": Value("prompt.sees", "cache", "u8", (heads, rows, context)),
        }
        added = zeros((prompt, dense, *held.values()), memory)

        def sees(node: Node) -> list[Node]:
            if node.op != "attention":
                return [node]
            block = _Block(node, prompt, held, *patterns[node.block])
            added.update(block.memory)
            return [node.with_arguments(spans=dense), *block.nodes(method)]

        return graph.map_nodes(sees), memory | added

    return apply


class _Block:
    """The nodes after a block's attention; `memory` has its heads' patterns."""

    def __init__(
        self, node: Node, spans: Value, held: dict[str, Value], kinds: Array, sizes: Array
    ) -> None:
        self._node, self._spans, self._held, self._kinds = node, spans, held, kinds
        self._name = node.block
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
        """A node that updates the value of this name in place."""
        held = self._held[name]
        arguments = {**given, "spans": self._spans, "before": held, "out": held}
        own = self._node.format if format is None else None
        return Node(op, arguments, own, f"{self._name}.{op}")


def _demand_readable(graph: Graph, memory: Memory) -> dict[str, Node]:
    """The attention nodes by block; ModelError where the model's prompts cannot be read so."""
    blocks = demand_attention("prompt_attention", graph)
    first = heads_of(next(iter(blocks.values())))
    for block, node in blocks.items():
        heads = heads_of(node)
        if node.value("spans").name != "spans":
            raise ModelError(f"prompt_attention: {block} sees a window, which is sparse as it is")
        if memory[node.value("slopes").name].any():
            raise ModelError(f"prompt_attention: {block} has ALiBi: want a model with rope")
        if (memory[node.value("sinks").name] != -np.inf).any():
            raise ModelError(f"prompt_attention: {block} has sinks, which patterns do not know")
        if heads.size % 32 or heads.size > 256:
            raise ModelError(
                f"prompt_attention: heads of {block} have {heads.size} elements: want a multiple of"
                " 32, 256 at most"
            )
        if (heads.heads, heads.size) != (first.heads, first.size):
            raise ModelError(f"prompt_attention: {block} has heads unlike those of other blocks")
    return blocks
