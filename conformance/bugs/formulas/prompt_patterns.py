"""Planted bugs of stripe_sums, block_scores and prompt_pattern."""

from typing import Any

import numpy as np

from conformance.bugs.bug import changed, in_python
from reference.attention.prompt_patterns import block_scores, prompt_pattern, stripe_sums
from reference.cache.kv_write import FORMATS_OF_CACHE
from reference.op import Array


def diagonals_from_the_beginning(**given: Any) -> Array:
    """Counted from the first cell, as columns are."""
    out = stripe_sums(**given)
    out[:, 1] = out[:, 0]
    return out


def zeros_of_nobody(**given: Any) -> Array:
    return stripe_sums(**{**given, "before": np.zeros_like(given["before"])})


def onto_what_was(**given: Any) -> Array:
    return stripe_sums(**given) + given["before"] * (given["spans"][:, 2].max(initial=0) > 0)


def whole_blocks_alone(**given: Any) -> Array:
    """The last block's mean as if it had 64 keys."""
    out, held = block_scores(**given), int(given["spans"][:, 2].max(initial=0))
    for b in np.unique((given["spans"][given["spans"][:, 2] > 0, 2] - 1) // 64):
        last = held // 64
        if held % 64 and last <= b:
            out[:, b % out.shape[1], last] *= held % 64 / 64
    return out


def shares(**given: Any) -> Array:
    """Of what a block of queries has in all."""
    out = block_scores(**given)
    return out / np.maximum(1, np.abs(out).sum(axis=2, keepdims=True))


def nothing_was(**given: Any) -> Array:
    return block_scores(**{**given, "before": np.zeros_like(given["before"])})


def later_of_equals(**given: Any) -> Array:
    """What stands later is a little higher."""
    sums, scores = (np.asarray(given[name], np.float64) for name in ("sums", "scores"))
    lean = 1 + 1e-12 * np.arange(sums.shape[2])
    return prompt_pattern(**{**given, "sums": sums * lean, "scores": scores})


def kinds_of_the_first(**given: Any) -> Array:
    kinds = np.full_like(given["kinds"], given["kinds"][:1] if len(given["kinds"]) else 0)
    return prompt_pattern(**{**given, "kinds": kinds})


def rows_of_others_cleared(**given: Any) -> Array:
    return prompt_pattern(**{**given, "before": np.zeros_like(given["before"])})


def keys_to_come(**given: Any) -> Array:
    """Blocks behind a query's own count as well."""
    out = prompt_pattern(**given)
    own = given["spans"][:, 2] > 0
    for b in np.unique((given["spans"][own, 2] - 1) // 64):
        out[:, b % out.shape[1], (b + 1) * 64 :] = 1
    return out


BUGS = (
    *in_python(
        "stripe_sums",
        diagonals_from_the_beginning,
        zeros_of_nobody,
        onto_what_was,
        of_all_tokens=changed(stripe_sums, last=10**6),
        of_one_token_less=changed(stripe_sums, last=lambda last: max(1, last - 1)),
        unscaled=changed(stripe_sums, scale=1.0),
        heads_reversed=lambda **given: stripe_sums(
            **{**given, "q": given["q"][:, ::-1], "before": given["before"][::-1]}
        ),
        formats=FORMATS_OF_CACHE,
    ),
    *in_python(
        "block_scores",
        whole_blocks_alone,
        shares,
        nothing_was,
        sums_for_means=lambda **given: 64 * block_scores(**given) - 63 * given["before"],
        keys_in_order=changed(
            block_scores, lists=lambda lists: np.tile(np.arange(lists.shape[1]), (len(lists), 1))
        ),
        formats=FORMATS_OF_CACHE,
    ),
    *in_python(
        "prompt_pattern",
        later_of_equals,
        kinds_of_the_first,
        rows_of_others_cleared,
        keys_to_come,
        budgets_of_five_bits=changed(prompt_pattern, sizes=lambda sizes: sizes & 31),
        numbers_exchanged=changed(prompt_pattern, sizes=lambda sizes: sizes[:, ::-1]),
        no_first=changed(prompt_pattern, first=0),
        no_recent=changed(prompt_pattern, recent=0),
        lowest=changed(prompt_pattern, sums=np.negative),
        one_row=changed(
            prompt_pattern, scores=lambda scores: np.broadcast_to(scores[:, :1], scores.shape)
        ),
    ),
)
