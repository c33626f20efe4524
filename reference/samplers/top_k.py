"""Top-k: the k most likely tokens (Fan et al., arXiv 1805.04833)."""

import numpy as np

from reference.op import Arguments, Array, Case, Op
from reference.samplers.distribution import (
    SIZES,
    cost,
    dropped,
    exact,
    most_likely_first,
    some_logits,
)


def top_k(logits: Array, k: int) -> Array:
    """Keep the k largest logits; of equal ones at the edge, those with the lowest ids.

    logits float32 [vocab], k >= 1 tokens -> [vocab].
    """
    keep = np.zeros(len(logits), bool)
    keep[most_likely_first(logits)[:k]] = True
    return dropped(logits, keep)


def make(case: Case) -> Arguments:
    rng, vocab = case.rng(), case.shape["vocab"]
    logits = some_logits(case, rng)
    return {"logits": logits, "k": int(rng.choice([1, 2, 5, 40, max(1, vocab // 2), vocab + 3]))}


OP = Op(
    name="top_k",
    reference=top_k,
    signature="logits: f32[vocab], k: i64 -> out: f32[vocab]",
    axes={"vocab": SIZES},
    make=make,
    bound=exact,
    cost=cost,
)
