"""What model families have in common: inputs of a step, projections, attention over the cache."""

from collections.abc import Mapping
from dataclasses import dataclass

from engine.config import ModelConfig
from engine.graph import Graph, Value


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What the engine writes before each step (see reference/attention.py for lists and spans)."""

    tokens: Value
    positions: Value
    cells: Value
    spans: Value
    lists: Value
    cell_positions: Value
    rows: Value


def project(graph: Graph, weights: Mapping[str, Value], name: str, x: Value) -> Value:
    """Linear with the tensor NAME.weight, and NAME.bias where there is one."""
    out = graph("linear", name, x=x, weight=weights[f"{name}.weight"])
    bias = weights.get(f"{name}.bias")
    return graph("add_bias", f"{name}.bias", x=out, bias=bias) if bias else out


def attend(
    graph: Graph,
    block: str,
    q: Value,
    k: Value,
    v: Value,
    weights: Mapping[str, Value],
    inputs: StepInputs,
    caches: Mapping[str, Value],
    config: ModelConfig,
) -> Value:
    """Keys and values into the block's cache, then attention over it.

    q [tokens heads*head_dim], k and v [tokens kv_heads*head_dim] in any view -> [tokens
    heads*head_dim].
    """
    heads, kv_heads, head_dim = config.heads, config.kv_heads, config.head_dim
    tokens = inputs.tokens.dims[0]
    k_cache, v_cache = caches[f"{block}.k_cache"], caches[f"{block}.v_cache"]
    for cache, new in ((k_cache, k), (v_cache, v)):
        graph(
            "kv_write",
            f"{cache.name}_write",
            out=cache,
            x=new.view(tokens, kv_heads * head_dim),
            cells=inputs.cells,
            before=cache,
        )
    attended = graph(
        "attention",
        f"{block}.attention",
        q=q.view(tokens, heads, head_dim),
        k=k_cache,
        v=v_cache,
        lists=inputs.lists,
        spans=inputs.spans,
        positions=inputs.positions,
        cell_positions=inputs.cell_positions,
        slopes=weights["attention.slopes"],
        scale=head_dim**-0.5,
        softcap=0.0,
    )
    return attended.view(tokens, heads * head_dim)
