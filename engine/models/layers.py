"""What model families have in common: inputs of a step, projections, attention over the cache."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.config import ModelConfig, ModelError
from engine.graph import LOGITS, Graph, Value
from reference import rope_frequencies


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What the engine writes before each step (of lists and spans see reference/attention);
    `window_spans` where blocks have a window, `sources` and `targets` where they are recurrent (see
    reference/recurrent/state.py), `of_blocks` the rows of tokens' embeddings where each block has
    its own."""

    tokens: Value
    positions: Value
    cells: Value
    spans: Value
    lists: Value
    cell_positions: Value
    rows: Value
    window_spans: Value | None = None
    sources: Value | None = None
    targets: Value | None = None
    of_blocks: tuple[Value, ...] = ()


def with_biases(weights: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Tensors NAME.weight by their dimensions, each with a NAME.bias of as many rows."""
    return {
        f"{name.removesuffix('weight')}{kind}": dims[:1] if kind == "bias" else dims
        for name, dims in weights.items()
        for kind in ("weight", "bias")
    }


def optional_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """What a file of most families may have: an output of its own, and divisors of rope's
    frequencies."""
    return {
        "output.weight": (config.vocab, config.hidden),
        "rope_freqs.weight": (config.rope_dims // 2,),
    }


def attention_tensors(config: ModelConfig, i: int) -> dict[str, tuple[int, ...]]:
    """The weights of block i's attention, with dimensions (rows, elements)."""
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    rows = {"qkv": q + 2 * kv} if config.fused_qkv else {"q": q, "k": kv, "v": kv}
    return {
        **{f"blk.{i}.attn_{n}.weight": (count, config.hidden) for n, count in rows.items()},
        f"blk.{i}.attn_output.weight": (config.hidden, q),
    }


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


def rms_norm(
    graph: Graph, weights: Mapping[str, Value], name: str, x: Value, config: ModelConfig
) -> Value:
    """rms_norm with the tensor NAME.weight, or x where there is none."""
    weight = weights.get(f"{name}.weight")
    return graph("rms_norm", name, x=x, weight=weight, eps=config.norm_eps) if weight else x


def layer_norm(
    graph: Graph, weights: Mapping[str, Value], name: str, x: Value, config: ModelConfig
) -> Value:
    """layer_norm with the tensors NAME.weight and NAME.bias, or the constant for norms without."""
    bias = weights.get(f"{name}.bias") or weights.get("layer_norm.no_bias")
    if bias is None:
        raise ModelError(f"tensor {name}.bias is missing")
    weight = weights[f"{name}.weight"]
    return graph("layer_norm", name, x=x, weight=weight, bias=bias, eps=config.norm_eps)


def heads_normed(
    graph: Graph, weights: Mapping[str, Value], name: str, x: Value, config: ModelConfig
) -> Value:
    """x [tokens heads*head_dim] by the tensor NAME.weight, or x where there is none.

    In families with `plain_norm` every head is a row of its own for layer_norm, times that head's
    row of the tensor [heads head_dim]. In others it is for rms_norm where the tensor is [head_dim],
    and all heads are one row where it has them all.
    """
    factors = weights.get(f"{name}.weight")
    if factors is None:
        return x
    (tokens, width), head_dim = x.dims, config.head_dim
    assert isinstance(width, int)
    rows = x.view(f"{tokens}*{width // head_dim}", head_dim)
    if "heads_norm.weight" not in weights:
        alone = factors.dims == (head_dim,)
        return rms_norm(graph, weights, name, rows if alone else x, config)
    plain = {part: weights[f"heads_norm.{part}"] for part in ("weight", "bias")}
    rows = graph("layer_norm", f"{name}.rows", x=rows, **plain, eps=config.norm_eps)
    return graph("mul_columns", name, x=rows.view(tokens, width), factors=factors)


def head_norms(config: ModelConfig, i: int) -> dict[str, tuple[int, ...]]:
    """The layer norms of block i's queries and keys, a row for each head, with dimensions."""
    heads = {"q": config.heads, "k": config.kv_heads}
    return {f"blk.{i}.attn_{n}_norm.weight": (heads[n], config.head_dim) for n in heads}


def plain_norm(config: ModelConfig) -> dict[str, np.ndarray[Any, Any]]:
    """The constants of layer norms of heads."""
    size = config.head_dim
    return {
        "heads_norm.weight": np.ones(size, np.float32),
        "heads_norm.bias": np.zeros(size, np.float32),
    }


def no_bias(config: ModelConfig) -> dict[str, np.ndarray[Any, Any]]:
    """The constant for norms without a bias."""
    return {"layer_norm.no_bias": np.zeros(config.hidden, np.float32)}


def rope_constants(
    config: ModelConfig, divisors: np.ndarray[Any, Any] | None
) -> dict[str, np.ndarray[Any, Any]]:
    """What `rotation_of`, `rotation_of_windows` and `attend` want that is in no file; see family.py
    for `divisors`."""
    found = {"rope.frequencies": config.rope(divisors)[0]} | no_slopes(config)
    if config.window_base:
        of_windows = rope_frequencies.plain(config.rope_dims, config.window_base)
        found["rope.frequencies.windows"] = of_windows
    return found


def no_slopes(config: ModelConfig) -> dict[str, np.ndarray[Any, Any]]:
    """No ALiBi and no sinks: what `attend` wants that is in no file."""
    return {"attention.slopes": np.zeros(config.heads, np.float32)} | no_sinks(config)


def no_sinks(config: ModelConfig) -> dict[str, np.ndarray[Any, Any]]:
    return {"attention.sinks": np.full(config.heads, -np.inf, np.float32)}


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


def rotation_of_windows(
    graph: Graph, weights: Mapping[str, Value], inputs: StepInputs, rotation: Value
) -> Value:
    """That of blocks with a window: `rotation`, that of the others, unless they have a base."""
    frequencies = weights.get("rope.frequencies.windows")
    if frequencies is None:
        return rotation
    positions = inputs.positions
    return graph(
        "rotation",
        "rotation.windows",
        positions=positions,
        frequencies=frequencies,
        magnitude=1.0,
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


def scaled(graph: Graph, label: str, x: Value, factor: float) -> Value:
    """factor * x, which is x where the factor is 1."""
    return x if factor == 1 else graph("scale", label, x=x, factor=factor)


def logits_of(graph: Graph, weights: Mapping[str, Value], x: Value) -> Value:
    """Logits of the last norm's result; the output may be tied to the embedding."""
    output = "output" if "output.weight" in weights else "token_embd"
    return graph("linear", LOGITS, x=x, weight=weights[f"{output}.weight"])


def attention(
    graph: Graph,
    block: str,
    h: Value,
    weights: Mapping[str, Value],
    inputs: StepInputs,
    caches: Mapping[str, Value],
    config: ModelConfig,
    rotation: Value | None = None,
    rope: str = "rope_neox",
) -> Value:
    """A block's attention of h [tokens hidden]: queries and keys are normalised where the file has
    norms of them, and turned by the op `rope` where there is a rotation; what each head has read is
    times a gate where the file has one. -> [tokens hidden].
    """
    name, gate = f"{block}.attn", None
    q, k, v = (project(graph, weights, f"{name}_{part}", h) for part in "qkv")
    if f"{name}_gate.weight" in weights:
        gate = project(graph, weights, f"{name}_gate", h)
    q = heads_normed(graph, weights, f"{name}_q_norm", q, config)
    k = heads_normed(graph, weights, f"{name}_k_norm", k, config)
    if rotation:
        q, k = turned(graph, rope, block, q, k, rotation, config)
    if gate:
        gate = graph("sigmoid", f"{name}_open", x=gate)
    return attend(graph, block, q, k, v, weights, inputs, caches, config, gate)


def attend(
    graph: Graph,
    block: str,
    q: Value,
    k: Value | None,
    v: Value | None,
    weights: Mapping[str, Value],
    inputs: StepInputs,
    caches: Mapping[str, Value],
    config: ModelConfig,
    gate: Value | None = None,
) -> Value:
    """Keys and values into the block's cache, attention over it or the block's window of it, and
    its output projected, times a gate [tokens heads*head_dim] where there is one. Without keys and
    values the cache, another block's, is read as it is.

    q [tokens heads*head_dim], k and v [tokens kv_heads*head_dim] in any view -> [tokens hidden].
    """
    heads, kv_heads, head_dim = config.heads, config.kv_heads, config.head_dim
    tokens = inputs.tokens.dims[0]
    k_cache, v_cache = caches[f"{block}.k_cache"], caches[f"{block}.v_cache"]
    for cache, new in ((k_cache, k), (v_cache, v)):
        if new is None:
            continue
        graph(
            "kv_write",
            f"{cache.name}_write",
            out=cache,
            x=new.view(tokens, kv_heads * head_dim),
            cells=inputs.cells,
            before=cache,
        )
    windowed = int(block.removeprefix("blk.")) in config.windowed
    spans = inputs.window_spans if windowed else inputs.spans
    assert spans
    attended = graph(
        "attention",
        f"{block}.attention",
        q=q.view(tokens, heads, head_dim),
        k=k_cache,
        v=v_cache,
        lists=inputs.lists,
        spans=spans,
        positions=inputs.positions,
        cell_positions=inputs.cell_positions,
        slopes=weights["attention.slopes"],
        sinks=weights.get(f"{block}.attn_sinks.weight") or weights["attention.sinks"],
        scale=config.score_scale,
        softcap=config.score_cap,
    )
    attended = attended.view(tokens, heads * head_dim)
    if gate:
        attended = graph("mul", f"{block}.attn_gated", x=attended, y=gate)
    return project(graph, weights, f"{block}.attn_output", attended)
