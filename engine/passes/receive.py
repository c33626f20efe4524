"""A pass that sums the attention each cell receives, for eviction policies
(engine/cache/eviction.py)."""

from engine.errors import ModelError
from engine.graph import Graph, Node, Value
from engine.passes import Memory, Pass, spans, zeros
from engine.passes.attending import demand_plain_scores, heads_of
from engine.policies.policy import Policy

OBSERVED = "observed_spans"  # the input with the observing tokens and the cells that each sees
SPANS = "spans"  # the input with the cells that each token sees; for one block NAME.i


def receiving(policy: Policy, sequences: int, context: int) -> Pass:
    """Give each block's attention its own spans, where blocks keep different numbers of cells, and
    add up received attention where the policy has observers; checks that the policy suits the
    model."""

    def apply(graph: Graph, memory: Memory) -> tuple[Graph, Memory]:
        name = f"kv_policy {type(policy).__name__}"
        if policy.capacity >= context:
            raise ModelError(
                f"{name} keeps {policy.capacity} cells, which is all of a context of {context}:"
                " nothing would be evicted"
            )
        blocks = demand_plain_scores(name, graph, memory, sinks=not policy.observers)
        numbers = {block: i for i, block in enumerate(blocks)}
        made: list[Value] = []

        def own(name: str, block: int) -> Value:
            made.append(spans(f"{name}.{block}" if policy.by_block else name))
            return made[-1]

        def attends(node: Node) -> list[Node]:
            if node.op != "attention":
                return [node]
            block, heads = numbers[node.block], heads_of(node)
            if policy.by_block:
                node = node.with_arguments(spans=own(SPANS, block))
            if not policy.observers:
                return [node]
            dims = sequences, heads.kv_heads, context
            total = Value(f"{node.block}.received", "cache", "f32", dims)
            made.append(total)
            arguments = {n: node.arguments[n] for n in ("q", "k", "lists", "scale", "softcap")}
            arguments |= {"spans": own(OBSERVED, block), "before": total, "out": total}
            return [node, Node("attention_received", arguments, node.format, total.name)]

        return graph.map_nodes(attends), memory | zeros(made, memory)

    return apply
