"""The activation of a model is not in its file: here it is ReLU, and a text tells how that fits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engine.engine import Engine
from engine.graph import Graph
from engine.model import Array
from engine.options import Options
from engine.perplexity import Passage, Scorer, Tally

ENOUGH = 8  # passages


@dataclass(frozen=True, slots=True)
class Perplexities:
    """Of one text and one model, by the activation of its gates."""

    relu: float
    silu: float


def with_relu(graph: Graph, limits: Mapping[str, int]) -> tuple[Graph, dict[str, Array]]:
    """The graph with ReLU for SiLU."""
    return Graph(
        [replace(node, op="reglu") if node.op == "swiglu" else node for node in graph.nodes]
    ), {}


def perplexities(path: Path, passages: Sequence[Sequence[int]], options: Options) -> Perplexities:
    """Of the first passages, of 2 tokens or more, each read on its own; all but the first count."""
    texts = [Passage(tokens) for tokens in passages[:ENOUGH]]
    longest = max(len(text.tokens) for text in texts)
    options = replace(options, context=longest, sequences=1, outputs=longest)
    found = []
    for rewrite in (with_relu, None):
        with Engine.load(path, replace(options, rewrite=rewrite)) as engine:
            scorer, tally = Scorer(engine), Tally()
            for text in texts:
                tally.add(scorer.read(text))
            found.append(tally.perplexity().perplexity.value)
    return Perplexities(*found)
