"""Tests whether a model's gates are ReLU, which its file does not say, by the perplexity of a
text."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engine.engine import Engine
from engine.graph import Graph
from engine.options import Options
from engine.passes import Memory
from engine.perplexity import Passage, Scorer, Tally

ENOUGH = 8  # passages


@dataclass(frozen=True, slots=True)
class Perplexities:
    """One text's perplexities under one model, by the activation of its gates."""

    relu: float
    silu: float


def with_relu(graph: Graph, memory: Memory) -> tuple[Graph, Memory]:
    """The graph with ReLU in place of SiLU."""
    nodes = [replace(node, op="reglu") if node.op == "swiglu" else node for node in graph.nodes]
    return Graph(nodes), memory


def perplexities(path: Path, passages: Sequence[Sequence[int]], options: Options) -> Perplexities:
    """Over the first passages, of 2 tokens or more, each read on its own; all tokens but the first
    count."""
    texts = [Passage(tokens) for tokens in passages[:ENOUGH]]
    longest = max(len(text.tokens) for text in texts)
    options = replace(options, context=longest, sequences=1, outputs=longest)
    found = []
    for passes in ((with_relu,), ()):
        with Engine.load(path, replace(options, passes=passes)) as engine:
            scorer, tally = Scorer(engine), Tally()
            for text in texts:
                tally.add(scorer.read(text))
            found.append(tally.perplexity().perplexity.value)
    return Perplexities(*found)
