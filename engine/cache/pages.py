"""Pages: which cells each token of an answer reads, where nothing is evicted (docs/decisions/042).

Whole pages of a text have the least and the largest of their keys, channel by channel, made when
their last cell is written. A token of an answer scores them and chooses some, and attention reads
lists of these in which heads stand as rows (docs/decisions/039): a head of a cell is a cell of its
own. Tokens of a prompt read all, by the node that they have without a policy.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from engine.cache.eviction import attending, check_blocks, kv_heads_of
from engine.cache.method import NEVER, Method, Step
from engine.errors import ModelError
from engine.graph import Graph, Node, Value
from engine.passes import Memory, Pass
from engine.policies.quest import Quest
from engine.policies.table import text_of
from reference.cache.pages import FORMATS_OF_PAGES
from reference.op import Array


class Pages(Method):
    """From where on the tokens of texts choose: those from `dense_until` on, whose cells are
    `by_choice`. Pages of the first `summed` slots of a sequence have extremes."""

    ends = True

    def __init__(self, policy: Quest, n_sequences: int, capacity: int) -> None:
        self.policy = policy
        self.dense_until = [NEVER] * n_sequences
        self.summed = [0] * n_sequences
        self.by_choice = np.zeros(capacity, np.bool_)
        self._read: list[int] = []  # sequences of the step that runs

    def begin(self, sequence: int, tokens: int) -> None:
        self.dense_until[sequence] = tokens

    def whole(self, sequence: int) -> None:
        self.dense_until[sequence] = NEVER

    def copied(self, source: int, target: int, count: int) -> None:  # noqa: ARG002
        self.dense_until[target], self.summed[target] = self.dense_until[source], 0

    def moved(self, sequence: int, slot: int) -> None:
        self.summed[sequence] = min(self.summed[sequence], slot)

    def removed(self, sequence: int, begin: int, gone: Array) -> None:  # noqa: ARG002
        if gone.any():
            self.moved(sequence, int(gone.argmax()))

    def freed(self, cells: Array) -> None:
        self.by_choice[cells] = False

    def cleared(self) -> None:
        self.dense_until[:] = [NEVER] * len(self.dense_until)

    def reach(self, sequence: int, end: int) -> int:
        """None within what chose its pages."""
        chose = self.by_choice[self.cells.of(sequence)]
        if not chose.any():
            return end
        return min(end, int(self.cells.positions_of(sequence)[chose.argmax()]))

    def most(self, count: int, tokens: int) -> int:
        return max(0, min(count, tokens - 1))

    def is_begun(self, sequence: int) -> bool:
        return self.dense_until[sequence] != NEVER

    def inputs(self, step: Step) -> dict[str, Array]:
        """Spans of tokens that read all and of those that choose, for others empty ones; of each
        sequence the whole pages that have no extremes yet, the first and the end."""
        if "stale" not in step.inputs:  # no block of the step chooses
            return {}
        dense, choosing = step.spans.copy(), step.spans.copy()
        chooses = step.positions >= np.array(self.dense_until)[step.spans[:, 0]]
        self.by_choice[step.cells] = chooses
        dense[chooses, 2] = choosing[~chooses, 2] = 0
        self._read = np.unique(step.spans[:, 0]).tolist()
        stale = self.stale(self._read)
        return {"dense_spans": dense, "choosing_spans": choosing, "stale": stale}

    def stale(self, sequences: Iterable[int]) -> Array:
        """int32 [n_sequences, 2]: of these the whole pages that have no extremes yet."""
        found, page = np.zeros((len(self.summed), 2), np.int32), self.policy.page
        for s in sequences:
            found[s] = self.summed[s] // page, self.cells.lengths[s] // page
        return found

    def ran(self) -> None:
        for s in self._read:
            self.summed[s] = self.cells.lengths[s]

    def told(self, cells: Array) -> dict[str, Any]:  # noqa: ARG002
        return {"kv_policy": text_of(self.policy), "dense_until": self.dense_until[0]}

    def restore(self, cells: Array, header: Mapping[str, Any]) -> None:
        self.dense_until[0] = dense = header["dense_until"]
        self.by_choice[cells[dense:]] = True


def paging(policy: Quest, sequences: int, context: int) -> Pass:
    """A pass: behind the policy's dense blocks attention is divided between tokens that read all
    and those that read the pages they choose; checks that it goes with the model."""

    def apply(graph: Graph, memory: Memory) -> tuple[Graph, Memory]:
        _check(policy, graph, memory, context)
        blocks = list(attending(graph))[policy.dense :]
        nodes: list[Node] = []
        added: Memory = {}
        for node in graph.nodes:
            block = node.label.rpartition(".")[0]
            if node.op == "attention" and block in blocks:
                one = _Block(block, node, policy, sequences, context, len(memory["tokens"]))
                nodes += one.nodes()
                added |= one.memory(added)
            else:
                nodes.append(node)
        return replace(graph, nodes=nodes), memory | added

    return apply


def _check(policy: Quest, graph: Graph, memory: Memory, context: int) -> None:
    """Raise ModelError where a policy does not go with a model."""
    if policy.chosen * policy.page >= context:
        raise ModelError(
            f"kv_policy Quest reads {policy.chosen} pages of {policy.page} cells, which is all of a"
            f" context of {context}: nothing would be left out"
        )
    check_blocks("Quest", graph, memory, sinks=False)
    for block, node in list(attending(graph).items())[policy.dense :]:
        if node.format not in FORMATS_OF_PAGES:
            raise ModelError(
                f"kv_policy Quest: keys of {block} are in {node.format}, which has no least and"
                f" largest of a channel: want kv_format {' or '.join(FORMATS_OF_PAGES)}"
            )


@dataclass(frozen=True, slots=True)
class _Block:
    """A block whose attention is divided, in a step of at most `tokens`."""

    name: str
    attention: Node
    policy: Quest
    sequences: int
    context: int
    tokens: int

    @property
    def _q(self) -> Value:
        q = self.attention.arguments["q"]
        assert isinstance(q, Value)
        return q

    def _heads(self) -> tuple[int, int, int, int]:
        """Query heads, KV heads, channels of each, and those that choose."""
        _, heads, head_dim = self._q.dims
        assert isinstance(heads, int)
        assert isinstance(head_dim, int)
        kv_heads = kv_heads_of(self.attention)
        return heads, kv_heads, head_dim, heads if self.policy.apart else kv_heads

    def _values(self) -> Iterator[Value]:
        """Its memory: extremes of its own, and what blocks with as many heads have in common."""
        heads, kv_heads, head_dim, choosers = self._heads()
        pages, wide = self.context // self.policy.page, self.context * kv_heads
        room = min(self.policy.chosen * self.policy.page, wide)
        rows = -(-self.tokens * choosers // (wide // room))
        extremes = self.sequences, kv_heads, pages, 2, head_dim
        yield Value(f"{self.name}.page_extremes", "cache", "u8", extremes, self.attention.format)
        for name, kind, dtype, dims in (
            ("dense_spans", "input", "i32", ("tokens", 3)),
            ("choosing_spans", "input", "i32", ("tokens", 3)),
            ("stale", "input", "i32", (self.sequences, 2)),
            (f"pages.{choosers}.scores", "cache", "f32", ("tokens", choosers, pages)),
            (f"pages.{choosers}.lists", "cache", "i32", (rows, wide)),
            (f"pages.{choosers}.positions", "weight", "i32", (f"tokens*{choosers}",)),
            (f"pages.{choosers}.cell_positions", "weight", "i32", (wide,)),
            (f"pages.{choosers}.slopes", "weight", "f32", (heads // choosers,)),
            (f"pages.{choosers}.sinks", "weight", "f32", (heads // choosers,)),
        ):
            yield Value(name, kind, dtype, dims)

    def memory(self, there: Memory) -> Memory:
        """What is not there yet, zeros, or for sinks their absence."""
        limits = {"tokens": self.tokens}
        dtypes = {"u8": np.uint8, "i32": np.int32, "f32": np.float32}
        made = {
            value.name: np.zeros(value.sizes(limits), dtypes[value.dtype])
            for value in self._values()
            if value.name not in there
        }
        for name in made:
            if name.endswith(".sinks"):
                made[name][:] = -np.inf
        return made

    def nodes(self) -> list[Node]:
        """Extremes of whole pages, scores, lists of cells; attention over all for some tokens, over
        these for the others, and their sum, of which one is zero."""
        extremes, dense, spans, stale, *shared = self._values()
        scores, lists, positions, cell_positions, slopes, sinks = shared
        given, graph, q, name = self.attention.arguments, Graph(), self._q, self.name
        heads, kv_heads, head_dim, choosers = self._heads()
        k, v = (self._as_rows(given[part], kv_heads) for part in ("k", "v"))
        page = self.policy.page
        graph(
            "page_extremes", f"{name}.page_extremes", out=extremes, k=given["k"],
            lists=given["lists"], stale=stale, page=page, before=extremes,
        )  # fmt: skip
        graph(
            "page_scores", f"{name}.page_scores", out=scores, q=q, extremes=extremes, spans=spans,
            page=page, before=scores,
        )  # fmt: skip
        _, chosen_spans = graph.several(
            "choose_pages", f"{name}.page_lists", {"out": lists}, scores=scores,
            lists=given["lists"], spans=spans, page=page, chosen=self.policy.chosen,
            kv_heads=kv_heads, before=lists,
        )  # fmt: skip
        some = graph(
            "attention", f"{name}.attention_pages", k=k, v=v, lists=lists,
            q=q.view(f"tokens*{choosers}", heads // choosers, head_dim), spans=chosen_spans,
            positions=positions, cell_positions=cell_positions, slopes=slopes, sinks=sinks,
            scale=given["scale"], softcap=given["softcap"],
        )  # fmt: skip
        whole = {key: value for key, value in given.items() if key not in ("out", "spans")}
        every = graph("attention", f"{name}.attention_all", None, **whole, spans=dense)
        out = given["out"]
        assert isinstance(out, Value)
        flat = "tokens", heads * head_dim
        graph(
            "add",
            self.attention.label,
            out=out.view(*flat),
            x=every.view(*flat),
            y=some.view(*flat),
        )
        return graph.nodes

    def _as_rows(self, cache: Value | float, kv_heads: int) -> Value:
        """A cache where each head of a cell is a row."""
        assert isinstance(cache, Value)
        capacity, width = cache.dims
        assert isinstance(capacity, int)
        assert isinstance(width, int)
        return cache.view(capacity * kv_heads, width // kv_heads)
