"""Plausible wrong samplers are rejected, and rounding decides seldom; what is true of each sampler
is in reference/laws/samplers.py."""

import math

import numpy as np
import pytest

from conformance.wrong.wrong import Wrong, computing
from reference.op import Array
from reference.samplers.distribution import dropped, most_likely_first
from reference.samplers.top_k import top_k as reference_top_k
from reference.softmax import softmax
from reference.table import OPS


def last_of_ties(logits: Array, k: int) -> Array:
    """top_k which prefers high ids."""
    return reference_top_k(logits[::-1], k)[::-1]


def whole_sum(logits: Array, p: float) -> Array:
    """top_p without the token that reaches p."""
    order = most_likely_first(logits)
    keep = np.zeros(len(logits), bool)
    keep[order] = np.cumsum(softmax(logits)[order]) < p
    keep[order[0]] = True
    return dropped(logits, keep | (p >= 1))


def divided(
    logits: Array,
    repeated: Array,
    counts: Array,
    repetition: float,
    frequency: float,
    presence: float,
) -> Array:
    """The repetition penalty as first published, which favours negative logits."""
    x = np.where(repeated > 0, logits / repetition, logits)
    return np.where(counts > 0, x - counts * frequency - presence, x)


def next_token(logits: Array, u: float) -> Array:
    """draw, one token late."""
    return (OPS["draw"].reference(logits, u) + 1) % len(logits)


def zero_for_gone(logits: Array, p: float) -> Array:
    """min_p which writes zeros for -inf."""
    out = OPS["min_p"].reference(logits, p)
    return np.where(np.isneginf(out), 0, out)


@pytest.mark.parametrize(
    ("op", "function"),
    [
        ("top_k", last_of_ties),
        ("top_k", lambda logits, k: reference_top_k(logits, k + 1)),
        ("top_p", whole_sum),
        ("typical", OPS["top_p"].reference),
        ("top_p", OPS["typical"].reference),
        ("min_p", zero_for_gone),
        ("penalties", divided),
        ("draw", next_token),
        ("mirostat_v2", lambda logits, mu: OPS["mirostat_v2"].reference(logits, mu * math.log(2))),
        ("mirostat_v1", OPS["mirostat_v2"].reference),
    ],
)
def test_the_judge_rejects_near_misses(op, function):
    """A plausible wrong sampler fails one of the op's own cases."""
    assert Wrong(op, "near-miss", computing(function)).first_rejection() is not None


@pytest.mark.parametrize("op", ["top_p", "typical", "xtc", "mirostat_v2", "draw"])
def test_doubt_is_rare(op):
    """In the op's cases, decisions that rounding may turn are less than one in a hundred."""
    doubtful = decisions = 0
    for case in OPS[op].quick_cases():
        inputs = OPS[op].make(case)
        expected = OPS[op].expected(inputs)
        with np.errstate(invalid="ignore"):
            also = OPS[op].also(inputs, expected)
        for name, choices in also.items():
            doubtful += int((choices != expected[name]).sum())
        decisions += case.shape["vocab"]
    assert doubtful < decisions / 100
