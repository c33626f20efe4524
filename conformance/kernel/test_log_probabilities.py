"""Plausible wrong codes and divergences are rejected; what is true of them is in
reference/laws/log_probabilities.py."""

import numpy as np
import pytest

from conformance.wrong.wrong import Wrong, computing
from reference.laws.log_probabilities import log_softmax
from reference.log_probabilities import decoded, kl_divergence
from reference.op import Array
from reference.table import OPS

Coded = tuple[Array, Array]


def reverse(logits: Array, codes: Array, line: Array) -> Array:
    """The divergence the other way round."""
    p, q = log_softmax(logits), decoded(codes, line)
    return np.array([np.sum(np.exp(p) * (p - q))])


def uncut(logits: Array, codes: Array, line: Array) -> Array:
    """Clipped tokens counted as if they were that likely."""
    base = decoded(codes, line)
    return np.array([np.sum(np.exp(base) * (base - log_softmax(logits)))])


def in_bits(logits: Array, codes: Array, line: Array) -> Array:
    return kl_divergence(logits, codes, line) / np.log(2)


def of_logits(logits: Array, codes: Array, line: Array) -> Array:
    """The fitted logits not normalised."""
    base = decoded(codes, line)
    counts = base > -16
    return np.array([np.sum(np.exp(base[counts]) * (base[counts] - logits[counts]))])


def truncated(logits: Array) -> Coded:
    """Codes cut off, not rounded."""
    codes, line = OPS["quantise_log_probabilities"].reference(logits)
    low = np.maximum(logits.min(), logits.max() - np.float32(16))
    down = np.zeros_like(codes)
    if line[0]:
        down[:] = np.maximum(logits - low, 0) / line[0]
    return down, line


def unclipped(logits: Array) -> Coded:
    """Sixteen bits over the whole range."""
    low, top = logits[np.isfinite(logits)].min(), logits.max()
    scale = (top - low) / np.float32(65535)
    codes = np.rint(np.maximum(logits - low, 0) / scale if scale else np.zeros(len(logits)))
    return codes.astype(np.uint16), np.array([scale, log_softmax(logits)[logits == low][0]])


@pytest.mark.parametrize(
    ("op", "function"),
    [
        ("kl_divergence", reverse),
        ("kl_divergence", uncut),
        ("kl_divergence", in_bits),
        ("kl_divergence", of_logits),
        ("quantise_log_probabilities", truncated),
        ("quantise_log_probabilities", unclipped),
    ],
)
def test_the_judge_rejects_near_misses(op, function):
    """A plausible wrong kernel fails one of the op's own cases."""
    assert Wrong(op, "near-miss", computing(function)).first_rejection() is not None
