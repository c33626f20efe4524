"""What of a KV cache is kept once a prompt has been read, method by method, as papers have it; and
what of it a token reads, by `quest`, which keeps all, and by `streaming_slots`.

Each of the others takes what it looks at and gives the slots that each head of keys keeps,
ascending, int32 [kv_heads, kept]; there are no fewer cells than that. Of equal scores the earlier
cells are kept.
`received` [kv_heads, held] is the attention that cells received of the tokens that observe, query
heads of a group added up (attention_received.py): kvpress averages them, which chooses the same;
SnapKV's own code keeps other cells for each query head.
"""

from fractions import Fraction

import numpy as np

from reference.cache.cell_scores import keydiff, knorm, pool_scores
from reference.cache.keep_cells import keep_top
from reference.op import Array


def pyramid(capacity: int, always: int, beta: int, blocks: int, held: int) -> list[int]:
    """How many cells each block keeps of `held`, as many as there are or more than `capacity`
    (PyramidKV, Cai et al., arXiv 2406.02069): in the mean `capacity`, of which `always` whatever
    they score; of the others the last block keeps 1 / beta of the mean, and the first block as much
    more than that as the last one less, if there are so many; between them it falls linearly.

    That is the authors' code but for its rounding, which is kvpress's; kvpress counts what is
    always kept among what it divides, so that its last block has 1 / beta of all.
    """
    mean = capacity - always
    most = min(2 * mean - Fraction(mean, beta), Fraction(held - always))
    step = 2 * (most - mean) / max(1, blocks - 1)
    return [always + round(most - i * step) for i in range(blocks)] if blocks > 1 else [capacity]


def streaming_llm(kv_heads: int, held: int, kept: int, sinks: int) -> Array:
    """The first `sinks` cells and the latest (Xiao et al., arXiv 2309.17453)."""
    return keep_top(np.zeros((kv_heads, held), np.float32), kept, sinks, kept - sinks)


def by_knorm(k: Array, cells: Array, kv_heads: int, format: str, kept: int) -> Array:
    """Keys of the smallest norms (Devoto et al., arXiv 2406.11430)."""
    return keep_top(knorm(k, cells, kv_heads, format), kept, 0, 0)


def by_keydiff(k: Array, cells: Array, kv_heads: int, format: str, kept: int) -> Array:
    """Keys least like the mean direction of all (Park et al., arXiv 2504.15364)."""
    return keep_top(keydiff(k, cells, kv_heads, format), kept, 0, 0)


def snapkv(received: Array, kept: int, window: int, kernel: int) -> Array:
    """The last `window` cells, whose tokens observe, and those that received most of them, with
    their neighbours: the mean over `kernel` of them (Li et al., arXiv 2404.14469)."""
    return keep_top(pool_scores(received, kernel, window), kept, 0, window)


def h2o(received: Array, kept: int, recent: int) -> Array:
    """The last `recent` cells, and those that received most of all tokens so far (Zhang et al.,
    arXiv 2306.14048)."""
    return keep_top(received, kept, 0, recent)


def quest(q: Array, keys: Array, page: int, chosen: int, choosers: int) -> list[Array]:
    """The slots that a token's heads read, of pages of `page` cells: the last page, in which it
    stands itself, and the `chosen` - 1 others of the highest sum_i max(q_i m_i, q_i M_i), m_i and
    M_i being the least and the largest of their keys' channel i (Tang et al., arXiv 2406.10774).

    q [heads, head_dim], keys [held, kv_heads, head_dim] -> for each chooser slots, ascending. Query
    heads that share one add up their scores: with as many choosers as heads each has its own, as
    the authors' code has it, of models where none share a head of keys. Their kernels always read
    the last page; their evaluation in PyTorch lets it compete.
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
    """Of a model's heads of keys those that stream (DuoAttention, Xiao et al., arXiv 2410.10819):
    the `sparsity` of them that have the lowest of `alphas` [blocks, kv_heads], which say how much
    of a head's output full attention gives, from 0 to 1. -> bool like alphas.

    Of equal ones the earlier stream; the authors' code adds noise before it takes a quantile.
    """
    clipped = np.clip(alphas, 0, 1)
    lowest = np.argsort(clipped, axis=None, kind="stable")[: round(clipped.size * sparsity)]
    streaming = np.zeros(clipped.size, np.bool_)
    streaming[lowest] = True
    return streaming.reshape(clipped.shape)


def streaming_slots(place: int, sinks: int, recent: int, stride: int) -> Array:
    """The slots that a streaming head's token sees which stands at this place of its text: the
    first `sinks`, and the latest `recent`, its own among them, with those before these back to a
    multiple of `stride`.

    With a stride of 1 that is the mask of the authors' training (streaming_attn.py). Their kernels
    have windows of whole blocks of 128, and read the first part of a prompt whole.
    """
    begin = max(sinks, (place + 1 - recent) // stride * stride)
    return np.append(np.arange(min(sinks, place + 1)), np.arange(begin, place + 1))


def duo_attention(
    q: Array, k: Array, v: Array, streams: Array, sinks: int, recent: int, stride: int
) -> Array:
    """softmax(q k^T / sqrt(head_dim)) v of a sequence over itself, where the heads of keys that
    `streams` names, bool [kv_heads], see their `streaming_slots` and the others all before.

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
