"""DeepSeek-V2 (arXiv 2405.04434) and V3 (arXiv 2412.19437): latent attention, and mixtures of
experts with a shared network.

Keys and values come out of a latent vector of each token, and the cache holds that: the vector,
normalised, and a key that is turned by its position and that all heads have in common. What makes a
head's keys of the vector is absorbed by its query, k_b q, and what makes its values, v_b, by the
output; so all heads attend to one key, whose first elements are the value. Prompts are read so,
too, and no bit depends on how they are cut.

MiniCPM 3 (Hu et al., 2024) has such attention and networks without experts, and scales. Its file,
as old ones of DeepSeek, has k_b and v_b as one tensor, k_b turned, and rope turns halves: rows of
queries and of the key of all are taken in the order in which these are neighbours.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from engine.config import Latent, ModelConfig
from engine.graph import Graph, Value
from engine.models import experts, feed_forward
from engine.models.blocks import logits_of_blocks
from engine.models.family import Family, Picked, Rows
from engine.models.layers import (
    StepInputs,
    no_slopes,
    project,
    rotation_of,
    scaled,
    turned,
)

SLOTS = "heads.slots"


def latent_of(config: ModelConfig) -> Latent:
    assert config.latent
    return config.latent


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor the model needs, with its dimensions ([heads or experts], rows, elements)."""
    hidden, heads, own = config.hidden, config.heads, latent_of(config)
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (config.vocab, hidden)}
    for i in range(config.blocks):
        block = f"blk.{i}"
        tensors[f"{block}.attn_norm.weight"] = (hidden,)
        if own.q_rank:
            tensors |= {
                f"{block}.attn_q_a.weight": (own.q_rank, hidden),
                f"{block}.attn_q_a_norm.weight": (own.q_rank,),
                f"{block}.attn_q_b.weight": (heads * own.key, own.q_rank),
            }
        else:
            tensors[f"{block}.attn_q.weight"] = (heads * own.key, hidden)
        tensors |= {
            f"{block}.attn_kv_a_mqa.weight": (config.head_dim, hidden),
            f"{block}.attn_kv_a_norm.weight": (own.kv_rank,),
            **makers(config, block),
            f"{block}.attn_output.weight": (hidden, heads * own.value),
            f"{block}.ffn_norm.weight": (hidden,),
        } | feed_forward.expected_tensors(config, i)
    return tensors | {"output_norm.weight": (hidden,)}


def makers(config: ModelConfig, block: str) -> dict[str, tuple[int, ...]]:
    """Of a block what makes heads' keys and values, with dimensions."""
    own, nope = latent_of(config), latent_of(config).key - config.rope_dims
    if own.joined:
        return {f"{block}.attn_kv_b.weight": (config.heads * (nope + own.value), own.kv_rank)}
    return {
        f"{block}.attn_k_b.weight": (config.heads, own.kv_rank, nope),
        f"{block}.attn_v_b.weight": (config.heads, own.value, own.kv_rank),
    }


def optional_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Tensors a file may have."""
    sets = ("long", "short") if latent_of(config).halves else ()
    return {
        "output.weight": (config.vocab, config.hidden),
        **{f"rope_factors_{kind}.weight": (config.rope_dims // 2,) for kind in sets},
        **experts.optional_tensors(config),
    }


def parts(config: ModelConfig) -> dict[str, Rows | Picked]:
    """Of attn_kv_a_mqa what makes the latent vector, and what makes the key that is turned; of
    attn_kv_b, where a file has it, what makes keys, and what makes values."""
    own, turning, heads = latent_of(config), config.rope_dims, range(config.heads)
    nope, found = own.key - turning, dict[str, Rows | Picked]()
    step, order = nope + own.value, np.arange(turning).reshape(2, -1).T.ravel()
    heads_keys = [np.r_[:nope, nope + order] + h * own.key for h in heads]
    for block in (f"blk.{i}" for i in range(config.blocks)):
        both = f"{block}.attn_kv_a_mqa.weight"
        found[f"{block}.attn_kv_a.weight"] = Rows(both, 0, own.kv_rank)
        found[f"{block}.attn_k_a.weight"] = Rows(both, own.kv_rank, turning)
        if own.halves:
            found[f"{block}.attn_k_a.weight"] = Picked(both, tuple(own.kv_rank + order))
            q = f"{block}.attn_q_b.weight" if own.q_rank else f"{block}.attn_q.weight"
            found[q] = Picked(q, tuple(np.concatenate(heads_keys)))
        if own.joined:
            both = f"{block}.attn_kv_b.weight"
            keys = tuple(h * step + i for h in heads for i in range(nope))
            values = tuple(h * step + i for h in heads for i in range(nope, step))
            found[f"{block}.attn_k_b.weight"] = Picked(both, keys, config.heads, turned=True)
            found[f"{block}.attn_v_b.weight"] = Picked(both, values, config.heads)
    return found


def constants(config: ModelConfig, divisors: np.ndarray[Any, Any] | None) -> dict[str, Any]:
    """Arrays that are neither in the file nor computed by a node: frequencies of zero leave the
    latent vector as it is, and where each head's matrix lies."""
    still = np.zeros(latent_of(config).kv_rank // 2)
    return {
        "rope.frequencies": np.concatenate([still, config.rope(divisors)[0]]),
        SLOTS: np.arange(config.heads, dtype=np.int32),
    } | no_slopes(config)


def build(
    config: ModelConfig,
    weights: Mapping[str, Value],
    inputs: StepInputs,
    caches: Mapping[str, Value],
) -> tuple[Graph, Value]:
    """The nodes of one step and its logits [outputs, vocab]."""
    graph, own = Graph(), latent_of(config)
    x = graph("embedding", "token_embd", tokens=inputs.tokens, weight=weights["token_embd.weight"])
    x = scaled(graph, "embd", x, config.scales.embedding)
    rotation = rotation_of(graph, weights, inputs, config)

    def normed(x: Value, name: str) -> Value:
        return graph("rms_norm", name, x=x, weight=weights[f"{name}.weight"], eps=own.eps)

    def mixed(i: int, h: Value) -> Value:
        block = f"blk.{i}"
        if own.q_rank:
            latent = project(graph, weights, f"{block}.attn_q_a", h)
            latent = normed(latent, f"{block}.attn_q_a_norm")
            q = project(graph, weights, f"{block}.attn_q_b", latent)
        else:
            q = project(graph, weights, f"{block}.attn_q", h)
        latent = project(graph, weights, f"{block}.attn_kv_a", h)
        latent = normed(latent, f"{block}.attn_kv_a_norm")
        shared = project(graph, weights, f"{block}.attn_k_a", h)
        q, k = queries_and_keys(graph, block, q, latent, shared, rotation, weights, config)
        return attend(graph, block, q, k, weights, inputs, caches, config)

    logits = logits_of_blocks(graph, x, mixed, weights, inputs, config)
    return graph, scaled(graph, "logits_scaled", logits, config.scales.logits)


def by_head(
    graph: Graph, label: str, x: Value, size: int, weights: Mapping[str, Value], whole: int
) -> Value:
    """The first `size` elements of each head by its own matrix of LABEL.weight, and behind that the
    last of them, up to `whole`. x [tokens heads width] -> [tokens heads whole]."""
    rows, ends = graph.several("heads_apart", f"{label}.apart", x=x, size=size)
    matrices = {"weight": weights[f"{label}.weight"], "slots": weights[SLOTS]}
    made = graph("linear_experts", label, x=rows, ends=ends, **matrices)
    return graph("heads_joined", f"{label}.joined", y=made, x=x, whole=whole)


def queries_and_keys(
    graph: Graph,
    block: str,
    q: Value,
    latent: Value,
    shared: Value,
    rotation: Value,
    weights: Mapping[str, Value],
    config: ModelConfig,
) -> list[Value]:
    """Queries that have absorbed what makes keys, and the key of all heads, turned.

    q [tokens heads*key], latent [tokens kv_rank], shared [tokens rope_dims]
    -> [tokens heads head_dim], [tokens 1 head_dim].
    """
    tokens, key, turning = rotation.dims[0], latent_of(config).key, config.rope_dims
    q, whole = q.view(tokens, config.heads, key), config.head_dim
    q = by_head(graph, f"{block}.attn_k_b", q, key - turning, weights, whole)
    shared = shared.view(tokens, 1, turning)
    k = graph("heads_joined", f"{block}.key", y=latent, x=shared, whole=whole)
    return turned(graph, "rope_norm", block, q, k, rotation, config)


def attend(
    graph: Graph,
    block: str,
    q: Value,
    k: Value,
    weights: Mapping[str, Value],
    inputs: StepInputs,
    caches: Mapping[str, Value],
    config: ModelConfig,
) -> Value:
    """Keys into the block's cache, attention of every head over it, each head's values out of what
    that gives, and the output projected.

    q [tokens heads head_dim], k [tokens 1 head_dim] -> [tokens hidden].
    """
    own, heads, cache = latent_of(config), config.heads, caches[f"{block}.k_cache"]
    tokens = inputs.tokens.dims[0]
    graph(
        "kv_write",
        f"{cache.name}_write",
        out=cache,
        x=k.view(tokens, config.head_dim),
        cells=inputs.cells,
        before=cache,
    )
    attended = graph(
        "attention",
        f"{block}.attention",
        q=q,
        k=cache,
        v=cache,
        lists=inputs.lists,
        spans=inputs.spans,
        positions=inputs.positions,
        cell_positions=inputs.cell_positions,
        slopes=weights["attention.slopes"],
        sinks=weights["attention.sinks"],
        scale=config.score_scale,
        softcap=0.0,
    )
    values = by_head(graph, f"{block}.attn_v_b", attended, own.kv_rank, weights, own.value)
    return project(graph, weights, f"{block}.attn_output", values.view(tokens, heads * own.value))


FAMILY = Family(expected_tensors, build, optional_tensors, parts, constants)
