"""Planted bugs of verification."""

import numpy as np

from conformance.bugs.bug import in_c, in_cuda, in_python
from reference.op import Array
from reference.verification import accept, at, exclude, normalised, pick, recover


def up_to_the_ratio(p: Array, q: Array, tokens: Array, u: Array) -> Array:
    """u q <= p, which at u = 0 accepts what the target forbids."""
    return (at(q, tokens) > 0) & (u * at(q, tokens) <= at(p, tokens))


def impossible_accepted(p: Array, q: Array, tokens: Array, u: Array) -> Array:
    """A token that q cannot give passes for one of infinite p / q."""
    return u * at(q, tokens) < at(p, tokens)


def by_target_alone(p: Array, q: Array, tokens: Array, u: Array) -> Array:
    return u < at(p, tokens)


def ratio_upside_down(p: Array, q: Array, tokens: Array, u: Array) -> Array:
    return accept(q, p, tokens, u)


def if_more_likely(p: Array, q: Array, tokens: Array, u: Array) -> Array:
    return at(p, tokens) >= at(q, tokens)


def ratio_in_float32(p: Array, q: Array, tokens: Array, u: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = at(p, tokens).astype(np.float32) / at(q, tokens).astype(np.float32)
    return u.astype(np.float32) < ratio


def of_the_next_token(p: Array, q: Array, tokens: Array, u: Array) -> Array:
    return accept(p, q, (tokens + 1) % p.shape[1], u)


def target_again(p: Array, q: Array, tokens: Array) -> Array:
    return p


def not_normalised(p: Array, q: Array, tokens: Array) -> Array:
    return np.maximum(0.0, p - q)


def both_ways(p: Array, q: Array, tokens: Array) -> Array:
    return normalised(np.abs(p - q))


def upside_down(p: Array, q: Array, tokens: Array) -> Array:
    return recover(q, p, tokens)


def target_without_the_token(p: Array, q: Array, tokens: Array) -> Array:
    """As if every draft were deterministic."""
    return exclude(p, tokens)


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


def token_kept(p: Array, tokens: Array) -> Array:
    return normalised(p)


def gap_left(p: Array, tokens: Array) -> Array:
    """The token goes and the others stay as likely as they were."""
    return np.where(np.arange(p.shape[1]) == tokens[:, None], 0, p)


def shared_among_all(p: Array, tokens: Array) -> Array:
    """The token's mass divided equally, not in proportion."""
    left = gap_left(p, tokens)
    return left + (left > 0) * at(p, tokens)[:, None] / np.maximum(1, (left > 0).sum(1))[:, None]


def neighbour_excluded(p: Array, tokens: Array) -> Array:
    return exclude(p, np.roll(tokens, 1))


def the_next(p: Array, u: Array) -> Array:
    return (pick(p, u) + 1) % p.shape[1]


def the_likeliest(p: Array, u: Array) -> Array:
    return np.argmax(p, axis=-1)


def u_of_the_first(p: Array, u: Array) -> Array:
    return pick(p, np.full_like(u, u[0]) if u.size else u)


def from_the_other_end(p: Array, u: Array) -> Array:
    return p.shape[1] - 1 - pick(p[:, ::-1], u)


def forbidden_at_zero(p: Array, u: Array) -> Array:
    """The running sum need only reach u: at 0 that is the first token, however unlikely."""
    running = np.cumsum(p, axis=-1)
    return np.argmax(running >= (u * running[:, -1])[:, None], axis=-1)


IN_CUDA = (
    *in_cuda("accept", "verification.cu", (
        ("or-equal", "u[node] * q[at] < p[at]", "u[node] * q[at] > p[at]"),
        ("not-proposed", "q[at] > 0 && ", ""),
        ("next-token", "vocab + tokens[node]", "vocab"),
    )),
    *in_cuda("recover", "verification.cu", (
        ("not-normed", "p[row + i] - q[row + i]) / mass", "p[row + i] - q[row + i])"),
        ("below-zero-too", "own += fmax(0., p[row + i] - q[row + i])",
         "own += p[row + i] - q[row + i]"),
        ("never-whole", "const bool whole = q[row + tokens[blockIdx.x]] == 0 || mass == 0",
         "const bool whole = false"),
        ("half-of-the-sum", "half = THREADS / 2; half;", "half = THREADS / 4; half;"),
        ("no-barrier-in-the-sum", "partial[threadIdx.x + half];\n    __syncthreads();",
         "partial[threadIdx.x + half];"),
    )),
    *in_cuda("exclude", "verification.cu", (
        ("token-stays", "out[row + i] = i == token || mass == 0 ? 0",
         "out[row + i] = mass == 0 ? 0"),
        ("token-weighs", "own += i == token ? 0 : p[row + i]", "own += p[row + i]"),
    )),
    *in_cuda("pick", "verification.cu", (
        ("run-after", "while (run < THREADS - 1 && !(ends[run] > target))",
         "while (run < THREADS - 1 && !(ends[run] >= target + 1e-3))"),
        ("from-the-begin", "chosen ? ends[chosen - 1] : 0", "0"),
        ("every-run", "if (threadIdx.x != chosen) return", "if (false) return"),
        ("no-barrier", "ends[threadIdx.x] = own;\n  __syncthreads();", "ends[threadIdx.x] = own;"),
    )),
)  # fmt: skip

IN_C = (
    *in_c("accept",
        ("token-of-sixteen-bits", "+ b->tokens[n];", "+ (uint16_t)b->tokens[n];"),
        ("node-and-31", "const int64_t at = n * vocab", "const int64_t at = (n & 31) * vocab"),
        ("ratio-in-float", "b->u[n] * b->q[at] < b->p[at]",
         "(float)b->u[n] < (float)(b->p[at] / b->q[at])"),
        ("least-q-as-none", "b->q[at] > 0", "b->q[at] > 1e-300"),
        ("u-of-zero-always", "b->q[at] > 0 &&", "b->q[at] > 0 && b->u[n] == 0 ||"),
    ),
    *in_c("recover",
        ("sum-in-float", "double whole = 0;", "float whole = 0;"),
        ("sum-of-the-first-65536", "i < vocab; i++) whole",
         "i < (vocab < 65536 ? vocab : 65536); i++) whole"),
        ("token-of-sixteen-bits", "b->tokens[n]", "(uint16_t)b->tokens[n]"),
        ("nothing-left-below-1e-12", "whole == 0", "whole < 1e-12"),
    ),
)  # fmt: skip

BUGS = (
    *IN_C,
    *in_python(
        "accept",
        up_to_the_ratio,
        impossible_accepted,
        by_target_alone,
        ratio_upside_down,
        if_more_likely,
        ratio_in_float32,
        of_the_next_token,
    ),
    *in_python(
        "recover",
        target_again,
        not_normalised,
        both_ways,
        upside_down,
        nothing_left,
        target_without_the_token,
        impossible_taken_away,
        by_the_first_rows_mass,
    ),
    *in_python("exclude", token_kept, gap_left, shared_among_all, neighbour_excluded),
    *in_python(
        "pick", the_next, the_likeliest, u_of_the_first, from_the_other_end, forbidden_at_zero
    ),
    *IN_CUDA,
)
