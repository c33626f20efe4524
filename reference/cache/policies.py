"""KV cache eviction policies as their papers define them: which slots each KV head keeps after a
prompt. `quest` and `streaming_slots` instead keep all cells and select what a token reads.

Each policy returns the kept slots of each KV head, ascending, int32 [kv_heads, kept], with kept at
most the number of cells. Of equal scores the earlier cells are kept. `received` [kv_heads, held] is
the attention that cells receive from the observation window, summed over the query heads of a group
(attention_received.py): kvpress averages, which selects the same cells; SnapKV's own code selects
cells for each query head.
"""

from fractions import Fraction

import numpy as np

from reference.cache.cell_scores import keydiff, knorm, pool_scores
from reference.cache.keep_cells import keep_top
from reference.op import Array


def pyramid(capacity: int, always: int, beta: int, blocks: int, held: int) -> list[int]:
    """How many of `held` cells each block keeps, for held >= capacity (PyramidKV, Cai et al., arXiv
    2406.02069): `capacity` in the mean, of which `always` are kept whatever their scores. Of mean =
    capacity - always the last block keeps mean / beta, the first one 2 mean - mean / beta or all
    that are held; between them the number falls linearly.

    This is the authors' code with kvpress's rounding; kvpress includes `always` in what it divides,
    so its last block has capacity / beta.
    """
    mean = capacity - always
    most = min(2 * mean - Fraction(mean, beta), Fraction(held - always))
    step = 2 * (most - mean) / max(1, blocks - 1)
    return [always + round(most - i * step) for i in range(blocks)] if blocks > 1 else [capacity]


def streaming_llm(kv_heads: int, held: int, kept: int, sinks: int) -> Array:
    """StreamingLLM: the first `sinks` cells and the latest (Xiao et al., arXiv 2309.17453)."""
    return keep_top(np.zeros((kv_heads, held), np.float32), kept, sinks, kept - sinks)


def by_knorm(k: Array, cells: Array, kv_heads: int, format: str, kept: int) -> Array:
    """The keys of the smallest norms (Devoto et al., arXiv 2406.11430)."""
    return keep_top(knorm(k, cells, kv_heads, format), kept, 0, 0)


def by_keydiff(k: Array, cells: Array, kv_heads: int, format: str, kept: int) -> Array:
    """The keys least similar to the mean direction (Park et al., arXiv 2504.15364)."""
    return keep_top(keydiff(k, cells, kv_heads, format), kept, 0, 0)


def snapkv(received: Array, kept: int, window: int, kernel: int) -> Array:
    """The last `window` cells, whose tokens observe, and the cells with the most attention from
    them, averaged over `kernel` neighbours (Li et al., arXiv 2404.14469)."""
    return keep_top(pool_scores(received, kernel, window), kept, 0, window)


def h2o(received: Array, kept: int, recent: int) -> Array:
    """The last `recent` cells, and the heavy hitters: cells with the most attention from all tokens
    so far (Zhang et al., arXiv 2306.14048)."""
    return keep_top(received, kept, 0, recent)


def quest(q: Array, keys: Array, page: int, chosen: int, choosers: int) -> list[Array]:
    """The slots that a token's heads read, in pages of `page` cells: the last page, which holds its
    own cell, and the `chosen` - 1 others with the highest sum_i max(q_i m_i, q_i M_i), where m_i
    and M_i are the minimum and maximum of channel i over a page's keys (Tang et al., arXiv
    2406.10774).

    q [heads, head_dim], keys [held, kv_heads, head_dim] -> slots for each chooser, ascending. Query
    heads of one chooser add up their scores; in the authors' code, for models without grouped
    queries, each head is one. Their kernels always read the last page; in their PyTorch evaluation
    it competes with the others.
    """
    group, own = len(q) // choosers, choosers // keys.shape[1]
    last = (len(keys) - 1) // page
    whole = keys[: last * page].reshape(last, page, *keys.shape[1:]).astype(np.float64)
    least, most = whole.min(axis=1), whole.max(axis=1)
    found = []
    for c in range(choosers):
        m, M = least[:, c // own], most[:, c // own]
        heads = q[c * group : (c + 1) * group].astype(np.float64)
        scores = sum(np.maximum(head * m, head * M).sum(axis=1) for head in heads)
        best = np.append(np.sort(np.argsort(-scores, kind="stable")[: chosen - 1]), last)
        slots = (best[:, None] * page + np.arange(page)).reshape(-1)
        found.append(slots[slots < len(keys)])
    return found


def streaming_heads(alphas: Array, sparsity: float) -> Array:
    """The streaming heads of a model (DuoAttention, Xiao et al., arXiv 2410.10819): the share
    `sparsity` of KV heads with the lowest `alphas` [blocks, kv_heads], trained weights from 0 to 1
    of full attention in a head's output. -> bool like alphas.

    Of equal ones the earlier stream; the authors' code adds noise before it takes a quantile.
    """
    clipped = np.clip(alphas, 0, 1)
    lowest = np.argsort(clipped, axis=None, kind="stable")[: round(clipped.size * sparsity)]
    streaming = np.zeros(clipped.size, np.bool_)
    streaming[lowest] = True
    return streaming.reshape(clipped.shape)


def streaming_slots(place: int, sinks: int, recent: int, stride: int) -> Array:
    """The slots that a streaming head's token at this place of the sequence sees: the first `sinks`
    and the latest `recent`, itself included, extended back to a multiple of `stride`.

    With a stride of 1 this is the mask of the authors' training (streaming_attn.py). Their kernels
    have windows of whole blocks of 128, and read the first part of a prompt whole.
    """
    begin = max(sinks, (place + 1 - recent) // stride * stride)
    return np.append(np.arange(min(sinks, place + 1)), np.arange(begin, place + 1))


def duo_attention(
    q: Array, k: Array, v: Array, streams: Array, sinks: int, recent: int, stride: int
) -> Array:
    """Causal softmax(q k^T / sqrt(head_dim)) v over one sequence, in which the KV heads with
    `streams`, bool [kv_heads], see their `streaming_slots` and the others all earlier tokens.

    q [tokens, heads, head_dim], k and v [tokens, kv_heads, head_dim] -> float64 like q.
    """
    groups = q.reshape(len(q), len(streams), -1, q.shape[2]).astype(np.float64)
    out = np.zeros_like(groups)
    for t, token in enumerate(groups):
        some, every = streaming_slots(t, sinks, recent, stride), np.arange(t + 1)
        for g, own in enumerate(token):
            slots = some if streams[g] else every
            scores = own @ k[slots, g].T.astype(np.float64) / np.sqrt(q.shape[2])
            powers = np.exp(scores - scores.max(axis=1, keepdims=True))
            out[t, g] = powers @ v[slots, g] / powers.sum(axis=1, keepdims=True)
    return out.reshape(q.shape)
