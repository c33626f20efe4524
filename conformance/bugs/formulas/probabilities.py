"""Planted bugs of probabilities, and of what verifies drafts by them."""

import math

import numpy as np

from conformance.bugs.bug import changed, in_python
from reference import softmax
from reference.log_probabilities import decoded, kl_divergence, quantise_log_probabilities
from reference.op import Array
from reference.verification import accept, at, exclude, normalised, pick, recover


def softmax_without_max(x: Array) -> Array:
    powers = np.exp(x)
    return powers / powers.sum(axis=1, keepdims=True)


def softmax_missing_the_last(x: Array) -> Array:
    powers = np.exp(x - x.max(axis=1, keepdims=True, initial=-np.inf).astype(np.float64))
    return powers / powers[:, :-1].sum(axis=1, keepdims=True)


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


def ratio_in_float32(p: Array, q: Array, tokens: Array, u: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = at(p, tokens).astype(np.float32) / at(q, tokens).astype(np.float32)
    return u.astype(np.float32) < ratio


def impossible_taken_away(p: Array, q: Array, tokens: Array) -> Array:
    """A token that q cannot give takes q's share from p."""
    left = np.maximum(0.0, p - q)
    return np.where(left.any(axis=-1, keepdims=True), normalised(left), p)


def nothing_left(p: Array, q: Array, tokens: Array) -> Array:
    """Zeros, or 0 / 0, where p and q are equal."""
    out = recover(p, q, tokens)
    return np.where((p > q).any(axis=-1, keepdims=True), out, 0)


def by_the_first_rows_mass(p: Array, q: Array, tokens: Array) -> Array:
    left = np.maximum(0.0, p - q)
    return left / left[:1].sum() if left[:1].any() else p


def gap_left(p: Array, tokens: Array) -> Array:
    """The token goes and the others stay as likely as they were."""
    return np.where(np.arange(p.shape[1]) == tokens[:, None], 0, p)


def shared_among_all(p: Array, tokens: Array) -> Array:
    """The token's mass divided equally, not in proportion."""
    left = gap_left(p, tokens)
    return left + (left > 0) * at(p, tokens)[:, None] / np.maximum(1, (left > 0).sum(1))[:, None]


def forbidden_at_zero(p: Array, u: Array) -> Array:
    """The running sum need only reach u: at 0 that is the first token, however unlikely."""
    running = np.cumsum(p, axis=-1)
    return np.argmax(running >= (u * running[:, -1])[:, None], axis=-1)


BUGS = (
    *in_python(
        "softmax",
        softmax_without_max,
        softmax_missing_the_last,
        softmax_of_powers_of_two=lambda x: softmax.softmax(x * math.log(2)),
        softmax_over_tokens=lambda x: softmax.softmax(x.T).T,
        softmax_unmasked=lambda x: softmax.softmax(np.where(np.isinf(x), 0, x)),
    ),
    *in_python(
        "kl_divergence",
        reverse,
        uncut,
        of_logits,
        in_bits=lambda logits, codes, line: kl_divergence(logits, codes, line) / np.log(2),
    ),
    *in_python("quantise_log_probabilities", truncated, unclipped),
    *in_python(
        "accept",
        ratio_in_float32,
        # u q <= p, which at u = 0 accepts what the target forbids.
        up_to_the_ratio=lambda p, q, tokens, u: (
            (at(q, tokens) > 0) & (u * at(q, tokens) <= at(p, tokens))
        ),
        # A token that q cannot give passes for one of infinite p / q.
        impossible_accepted=lambda p, q, tokens, u: u * at(q, tokens) < at(p, tokens),
        by_target_alone=lambda p, q, tokens, u: u < at(p, tokens),
        ratio_upside_down=lambda p, q, tokens, u: accept(q, p, tokens, u),
        if_more_likely=lambda p, q, tokens, u: at(p, tokens) >= at(q, tokens),
        of_the_next_token=lambda p, q, tokens, u: accept(p, q, (tokens + 1) % p.shape[1], u),
    ),
    *in_python(
        "recover",
        nothing_left,
        impossible_taken_away,
        by_the_first_rows_mass,
        target_again=lambda p, q, tokens: p,
        not_normalised=lambda p, q, tokens: np.maximum(0.0, p - q),
        both_ways=lambda p, q, tokens: normalised(np.abs(p - q)),
        upside_down=lambda p, q, tokens: recover(q, p, tokens),
        # As if every draft were deterministic.
        target_without_the_token=lambda p, q, tokens: exclude(p, tokens),
    ),
    *in_python(
        "exclude",
        gap_left,
        shared_among_all,
        token_kept=lambda p, tokens: normalised(p),
        neighbour_excluded=changed(exclude, tokens=lambda tokens: np.roll(tokens, 1)),
    ),
    *in_python(
        "pick",
        forbidden_at_zero,
        the_next=lambda p, u: (pick(p, u) + 1) % p.shape[1],
        the_likeliest=lambda p, u: np.argmax(p, axis=-1),
        u_of_the_first=lambda p, u: pick(p, np.full_like(u, u[0]) if u.size else u),
        from_the_other_end=lambda p, u: p.shape[1] - 1 - pick(p[:, ::-1], u),
    ),
)
