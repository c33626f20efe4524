"""DeepSeek-V2 (arXiv 2405.04434) and V3 (arXiv 2412.19437): multi-head latent attention (MLA), and
mixtures of experts with a shared network.

Keys and values are projections of a latent vector per token, and the cache holds that: the
normalised vector, and a rotated key common to all heads. The projection to a head's keys is
absorbed into its query, k_b q, and the one to its values, v_b, into the output; so all heads attend
to one key, whose first elements are the value. Prompts are computed so, too, and no bit depends on
how they are cut.

MiniCPM 3 (Hu et al., 2024) has such attention and networks without experts, and scales. Its file,
like old ones of DeepSeek, has k_b and v_b as one tensor, with k_b transposed, and rope rotates
halves: rows of queries and of the common key are taken in the order that makes these neighbours.
"""

from typing import Any

import numpy as np

from engine.config import Latent, ModelConfig
from engine.graph import Value
from engine.models import experts, feed_forward
from engine.models.blocks import logits_of_blocks
from engine.models.family import Family, Picked, Rows, output, output_and_two_sets
from engine.models.network import Network
from engine.models.tensors import Constants, Tensors, no_slopes

SLOTS = "heads.slots"


def latent_of(config: ModelConfig) -> Latent:
    assert config.latent
    return config.latent


def block(config: ModelConfig, i: int) -> Tensors:
    """The tensors of block i, with dimensions ([heads or experts], rows, elements)."""
    hidden, heads, own = config.hidden, config.heads, latent_of(config)
    if own.q_rank:
        queries: Tensors = {
            "attn_q_a.weight": (own.q_rank, hidden),
            "attn_q_a_norm.weight": (own.q_rank,),
            "attn_q_b.weight": (heads * own.key, own.q_rank),
        }
    else:
        queries = {"attn_q.weight": (heads * own.key, hidden)}
    return {
        "attn_norm.weight": (hidden,),
        **queries,
        "attn_kv_a_mqa.weight": (config.head_dim, hidden),
        "attn_kv_a_norm.weight": (own.kv_rank,),
        **makers(config),
        "attn_output.weight": (hidden, heads * own.value),
        "ffn_norm.weight": (hidden,),
        **feed_forward.tensors(config, i),
    }


def makers(config: ModelConfig) -> Tensors:
    """The tensors that project to heads' keys and values."""
    own, nope = latent_of(config), latent_of(config).key - config.rope_dims
    if own.joined:
        return {"attn_kv_b.weight": (config.heads * (nope + own.value), own.kv_rank)}
    return {
        "attn_k_b.weight": (config.heads, own.kv_rank, nope),
        "attn_v_b.weight": (config.heads, own.value, own.kv_rank),
    }


def optional(config: ModelConfig) -> Tensors:
    """Optional tensors besides the blocks."""
    return output_and_two_sets(config) if latent_of(config).halves else output(config)


def parts(config: ModelConfig) -> dict[str, Rows | Picked]:
    """The parts of attn_kv_a_mqa that give the latent vector and the rotated key; of attn_kv_b,
    where a file has it, those that give keys and values."""
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


def constants(config: ModelConfig, divisors: np.ndarray[Any, Any] | None) -> Constants:
    """Frequencies, of which zeros leave the latent vector unrotated, and the index of each head's
    matrix."""
    still = np.zeros(latent_of(config).kv_rank // 2)
    return {
        "rope.frequencies": np.concatenate([still, config.rope(divisors)[0]]),
        SLOTS: np.arange(config.heads, dtype=np.int32),
    } | no_slopes(config)


def build(net: Network) -> Value:
    """The nodes of one step; its logits [outputs, vocab]."""
    own, scales = latent_of(net.config), net.config.scales
    x, rotation = net.embedded(scales.embedding), net.rotation()

    def normed(name: str, x: Value) -> Value:
        return net.graph("rms_norm", name, x=x, weight=net.weights[f"{name}.weight"], eps=own.eps)

    def mixed(i: int, h: Value) -> Value:
        attn = f"blk.{i}.attn"
        if own.q_rank:
            latent = normed(f"{attn}_q_a_norm", net.project(f"{attn}_q_a", h))
            q = net.project(f"{attn}_q_b", latent)
        else:
            q = net.project(f"{attn}_q", h)
        latent = normed(f"{attn}_kv_a_norm", net.project(f"{attn}_kv_a", h))
        q, k = queries_and_keys(net, i, q, latent, net.project(f"{attn}_k_a", h), rotation)
        return attend(net, i, q, k)

    return net.scaled("logits_scaled", logits_of_blocks(net, x, mixed), scales.logits)


def by_head(net: Network, label: str, x: Value, size: int, whole: int) -> Value:
    """The first `size` elements of each head times its own matrix of LABEL.weight, followed by the
    head's last elements, up to `whole`. x [tokens heads width] -> [tokens heads whole]."""
    rows, ends = net.graph.multi_output("split_heads", f"{label}.apart", x=x, size=size)
    matrices = {"weight": net.weights[f"{label}.weight"], "slots": net.weights[SLOTS]}
    made = net.graph("linear_experts", label, x=rows, ends=ends, **matrices)
    return net.graph("merge_heads", f"{label}.joined", y=made, x=x, whole=whole)


def queries_and_keys(
    net: Network, i: int, q: Value, latent: Value, shared: Value, rotation: Value
) -> list[Value]:
    """Queries with the key projection absorbed, and the common key, rotated.

    q [tokens heads*key], latent [tokens kv_rank], shared [tokens rope_dims] -> [tokens heads
    head_dim], [tokens 1 head_dim].
    """
    config, tokens, key = net.config, rotation.dims[0], latent_of(net.config).key
    turning, whole = config.rope_dims, config.head_dim
    q = q.view(tokens, config.heads, key)
    q = by_head(net, f"blk.{i}.attn_k_b", q, key - turning, whole)
    shared = shared.view(tokens, 1, turning)
    k = net.graph("merge_heads", f"blk.{i}.key", y=latent, x=shared, whole=whole)
    return net.turned("rope_norm", i, q, k, rotation)


def attend(net: Network, i: int, q: Value, k: Value) -> Value:
    """Write keys to block i's cache, attend with every head, project each head's result to its
    values, then to the output.

    q [tokens heads head_dim], k [tokens 1 head_dim] -> [tokens hidden].
    """
    own, heads, cache = latent_of(net.config), net.config.heads, net.caches[f"blk.{i}.k_cache"]
    tokens = net.inputs.tokens.dims[0]
    net.write(cache, k.view(tokens, net.config.head_dim))
    read = net.read(i, q, cache, cache)
    values = by_head(net, f"blk.{i}.attn_v_b", read, own.kv_rank, own.value)
    return net.project(f"blk.{i}.attn_output", values.view(tokens, heads * own.value))


FAMILY = Family(block, build, experts.optional, optional=optional, parts=parts, constants=constants)
