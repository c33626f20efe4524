"""Planted bugs of log_probabilities."""

import numpy as np

from conformance.bugs.bug import in_python
from reference.log_probabilities import decoded, kl_divergence, quantise_log_probabilities
from reference.op import Array

Coded = tuple[Array, Array]


def log_softmax(logits: Array) -> Array:
    depth = logits.astype(np.float64) - np.float64(logits.max())
    return np.asarray(depth - np.log(np.exp(depth).sum()))


def reverse(logits: Array, codes: Array, line: Array) -> Array:
    """The divergence the other way round."""
    p, q = log_softmax(logits), decoded(codes, line)
    return np.array([np.sum(np.exp(p) * (p - q))])


def uncut(logits: Array, codes: Array, line: Array) -> Array:
    """Clipped tokens counted as if they were that likely."""
    base = decoded(codes, line)
    return np.array([np.sum(np.exp(base) * (base - log_softmax(logits)))])


def of_logits(logits: Array, codes: Array, line: Array) -> Array:
    """The fitted logits not normalised."""
    base = decoded(codes, line)
    counts = base > -16
    return np.array([np.sum(np.exp(base[counts]) * (base[counts] - logits[counts]))])


def truncated(logits: Array) -> Coded:
    """Codes cut off, not rounded."""
    codes, line = quantise_log_probabilities(logits)
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


BUGS = (
    *in_python(
        "kl_divergence",
        reverse,
        uncut,
        of_logits,
        in_bits=lambda logits, codes, line: kl_divergence(logits, codes, line) / np.log(2),
    ),
    *in_python("quantise_log_probabilities", truncated, unclipped),
)
