"""What model families have in common: inputs of a step, projections, attention over the cache."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.config import ModelConfig, ModelError
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
    return biased(graph, weights, name, out)


def biased(
    graph: Graph, weights: Mapping[str, Value], name: str, x: Value, part: str = ""
) -> Value:
    """x and NAME.bias, or x alone where there is none; `part` sets nodes of one name apart."""
    bias = weights.get(f"{name}.bias")
    return graph("add_bias", f"{name}.bias{part}", x=x, bias=bias) if bias else x


def layer_norm(
    graph: Graph, weights: Mapping[str, Value], name: str, x: Value, config: ModelConfig
) -> Value:
    """layer_norm with the tensors NAME.weight and NAME.bias."""
    bias = weights.get(f"{name}.bias")
    if bias is None:
        raise ModelError(f"tensor {name}.bias is missing")
    weight = weights[f"{name}.weight"]
    return graph("layer_norm", name, x=x, weight=weight, bias=bias, eps=config.norm_eps)


def rope_constants(
    config: ModelConfig, divisors: np.ndarray[Any, Any] | None
) -> dict[str, np.ndarray[Any, Any]]:
    """What `rotation_of` and `attend` want that is in no file; see family.py for `divisors`."""
    return {"rope.frequencies": config.rope(divisors)[0]} | no_slopes(config)


def no_slopes(config: ModelConfig) -> dict[str, np.ndarray[Any, Any]]:
    """No ALiBi: what `attend` wants that is in no file."""
    return {"attention.slopes": np.zeros(config.heads, np.float32)}


def rotation_of(
    graph: Graph, weights: Mapping[str, Value], inputs: StepInputs, config: ModelConfig
) -> Value:
    """Cosines and sines of a step's positions."""
    return graph(
        "rotation",
        "rotation",
        positions=inputs.positions,
        frequencies=weights["rope.frequencies"],
        magnitude=config.rope(None)[1],
    )


def turned(
    graph: Graph, rope: str, block: str, q: Value, k: Value, rotation: Value, config: ModelConfig
) -> list[Value]:
    """Queries [tokens heads head_dim] and keys [tokens kv_heads head_dim], turned by an op."""
    tokens, head_dim = rotation.dims[0], config.head_dim
    return [
        graph(rope, f"{block}.{n}_rope", x=x.view(tokens, heads, head_dim), rotation=rotation)
        for n, x, heads in (("q", q, config.heads), ("k", k, config.kv_heads))
    ]


def logits_of(graph: Graph, weights: Mapping[str, Value], x: Value) -> Value:
    """Logits of the last norm's result; the output may be tied to the embedding."""
    output = "output" if "output.weight" in weights else "token_embd"
    return graph("linear", "logits", x=x, weight=weights[f"{output}.weight"])


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
    """Keys and values into the block's cache, attention over it, and its output projected.

    q [tokens heads*head_dim], k and v [tokens kv_heads*head_dim] in any view -> [tokens hidden].
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
    return project(graph, weights, f"{block}.attn_output", attended.view(tokens, heads * head_dim))
