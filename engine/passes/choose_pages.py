"""A pass in which generated tokens attend only to the pages that they choose
(engine/cache/pages.py).

Attention reads cell lists in which heads are rows (docs/decisions/039): one head of a cell is a
cell of its own. Tokens of a prompt attend to all pages, by the node they have without a policy.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from engine.errors import ModelError
from engine.graph import Graph, Node, Value
from engine.passes import Memory, Pass, spans, zeros
from engine.passes.attending import demand_plain_scores, heads_of
from engine.policies.quest import Quest
from reference.cache.pages import FORMATS_OF_PAGES


def choosing_pages(policy: Quest, sequences: int, context: int) -> Pass:
    """After the policy's dense blocks, divide attention between tokens that see all pages and those
    that see chosen ones; checks that the policy suits the model."""

    def apply(graph: Graph, memory: Memory) -> tuple[Graph, Memory]:
        choosing = _choosing(policy, graph, memory, context)
        tokens = len(memory["tokens"])
        blocks = {
            name: _Block(name, node, policy, sequences, context, tokens)
            for name, node in choosing.items()
        }
        added: Memory = {}
        for block in blocks.values():
            added |= zeros((v for v in block.values() if v.name not in added), memory)
        for name in added:
            if name.endswith(".sinks"):  # there are none
                added[name][:] = -np.inf

        def divided(node: Node) -> list[Node]:
            chooses = node.op == "attention" and node.block in blocks
            return blocks[node.block].nodes() if chooses else [node]

        return graph.map_nodes(divided), memory | added

    return apply


def _choosing(policy: Quest, graph: Graph, memory: Memory, context: int) -> dict[str, Node]:
    """The attention nodes with chosen pages, by block; ModelError where the policy does not suit
    the model."""
    if policy.chosen * policy.page >= context:
        raise ModelError(
            f"kv_policy Quest reads {policy.chosen} pages of {policy.page} cells, which is all of a"
            f" context of {context}: nothing would be left out"
        )
    blocks = demand_plain_scores("kv_policy Quest", graph, memory, sinks=False)
    found = dict(list(blocks.items())[policy.dense :])
    for block, node in found.items():
        if node.format not in FORMATS_OF_PAGES:
            raise ModelError(
                f"kv_policy Quest: keys of {block} are in {node.format}, which has no least and"
                f" largest of a channel: want kv_format {' or '.join(FORMATS_OF_PAGES)}"
            )
    return found


@dataclass(frozen=True, slots=True)
class _Block:
    """A block with divided attention, in a step of at most `tokens`."""

    name: str
    attention: Node
    policy: Quest
    sequences: int
    context: int
    tokens: int

    @property
    def _choosers(self) -> int:
        """The number of heads that choose: query heads each for itself, or KV heads for their
        group."""
        heads = heads_of(self.attention)
        return heads.heads if self.policy.apart else heads.kv_heads

    def values(self) -> Iterator[Value]:
        """Its memory: page extremes of its own, and buffers shared by blocks with the same
        heads."""
        own, choosers = heads_of(self.attention), self._choosers
        pages, wide = self.context // self.policy.page, self.context * own.kv_heads
        room = min(self.policy.chosen * self.policy.page, wide)
        rows = -(-self.tokens * choosers // (wide // room))
        extremes = self.sequences, own.kv_heads, pages, 2, own.size
        yield Value(f"{self.name}.page_extremes", "cache", "u8", extremes, self.attention.format)
        yield from map(spans, ("dense_spans", "choosing_spans"))
        for name, kind, dtype, dims in (
            ("stale", "input", "i32", (self.sequences, 2)),
            (f"pages.{choosers}.scores", "cache", "f32", ("tokens", choosers, pages)),
            (f"pages.{choosers}.lists", "cache", "i32", (rows, wide)),
            (f"pages.{choosers}.positions", "weight", "i32", (f"tokens*{choosers}",)),
            (f"pages.{choosers}.cell_positions", "weight", "i32", (wide,)),
            (f"pages.{choosers}.slopes", "weight", "f32", (own.heads // choosers,)),
            (f"pages.{choosers}.sinks", "weight", "f32", (own.heads // choosers,)),
        ):
            yield Value(name, kind, dtype, dims)

    def nodes(self) -> list[Node]:
        """The nodes: extremes of whole pages, scores, cell lists; attention over all cells for some
        tokens, over these lists for the others, and the sum of both, one of which is zero."""
        extremes, dense, choosing, stale, *shared = self.values()
        scores, lists, positions, cell_positions, slopes, sinks = shared
        given, graph, name = self.attention.arguments, Graph(), self.name
        own, choosers, q = heads_of(self.attention), self._choosers, self.attention.value("q")
        k, v = (self._as_rows(self.attention.value(part), own.kv_heads) for part in ("k", "v"))
        page = self.policy.page
        graph(
            "page_extremes", f"{name}.page_extremes", out=extremes, k=given["k"],
            lists=given["lists"], stale=stale, page=page, before=extremes,
        )  # fmt: skip
        graph(
            "page_scores", f"{name}.page_scores", out=scores, q=q, extremes=extremes,
            spans=choosing, page=page, before=scores,
        )  # fmt: skip
        _, chosen_spans = graph.multi_output(
            "choose_pages", f"{name}.page_lists", {"out": lists}, scores=scores,
            lists=given["lists"], spans=choosing, page=page, chosen=self.policy.chosen,
            kv_heads=own.kv_heads, before=lists,
        )  # fmt: skip
        some = graph(
            "attention", f"{name}.attention_pages", k=k, v=v, lists=lists,
            q=q.view(f"tokens*{choosers}", own.heads // choosers, own.size), spans=chosen_spans,
            positions=positions, cell_positions=cell_positions, slopes=slopes, sinks=sinks,
            scale=given["scale"], softcap=given["softcap"],
        )  # fmt: skip
        whole = {key: value for key, value in given.items() if key not in ("out", "spans")}
        every = graph("attention", f"{name}.attention_all", None, **whole, spans=dense)
        flat = "tokens", own.heads * own.size
        out = self.attention.value("out").view(*flat)
        graph("add", self.attention.label, out=out, x=every.view(*flat), y=some.view(*flat))
        return graph.nodes

    def _as_rows(self, cache: Value, kv_heads: int) -> Value:
        """View a cache with each head of a cell as a row."""
        return cache.view(cache.fixed(0) * kv_heads, cache.fixed(1) // kv_heads)
