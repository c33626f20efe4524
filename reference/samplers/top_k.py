"""Top-k (Fan et al., arXiv 1805.04833): keep the k most likely tokens."""

import numpy as np

from reference.laws import samplers as laws
from reference.op import Arguments, Array, Case, Op
from reference.samplers.distribution import (
    ON_LOGITS,
    cost,
    exact,
    mask_tokens,
    most_likely_first,
    option,
    some_logits,
)


def top_k(logits: Array, k: int) -> Array:
    """Keep the k largest logits; of equal ones at the cutoff, those with the lowest ids.

    logits float32 [vocab], k >= 1 tokens -> [vocab].
    """
    keep = np.zeros(len(logits), bool)
    keep[most_likely_first(logits)[:k]] = True
    return mask_tokens(logits, keep)


def make(case: Case) -> Arguments:
    vocab = case.shape["vocab"]
    k = option(case, (vocab // 2, 40, vocab - 1, 1, vocab, 2, vocab + 3, 5, 2**40, 300, vocab // 3))
    return {"logits": some_logits(case, case.rng()), "k": max(1, k)}


OP = Op(
    name="top_k",
    reference=top_k,
    signature="logits: f32[vocab], k: i64 -> out: f32[vocab]",
    **ON_LOGITS,
    make=make,
    bound=exact,
    cost=cost,
    laws=(
        *laws.filter_laws(make),
        laws.keeps_likeliest(make),
        laws.keeps_more(make, "k", (1, 2, 7, 63, 64)),
        *laws.TOP_K,
    ),
)
