"""Test whether a method of speculation keeps the target's distribution, by many samples at once.

A **way** processes one position of many texts, given each one's row of p and of q: it drafts tokens
as a drafter would, verifies them by the four ops, and returns the tokens. Chains of positions
follow a Markov chain, whose next token depends on the last one.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels.call import call
from kernels.table import variants
from reference.op import Array
from reference.table import OPS
from reference.verification import OPS as VERIFICATION
from reference.verification import normalised

Op = Callable[..., Array]
Random = np.random.Generator

DRAWS = 100_000
FALSE_ALARM = 1e-9  # the probability that an exact way fails a test


@dataclass(frozen=True, slots=True)
class Verification:
    """The ops by name, and their source of random numbers."""

    ops: Mapping[str, Op]
    random: Random

    def u(self, count: int) -> Array:
        return self.random.random(count)

    def draw(self, p: Array) -> Array:
        """Sample a token from each row. [draws vocab] -> int32 [draws]."""
        return self.ops["pick"](p=p, u=self.u(len(p)))

    def accepted(self, p: Array, q: Array, tokens: Array) -> Array:
        return self.ops["accept"](p=p, q=q, tokens=tokens, u=self.u(len(p))) > 0

    def recover(self, p: Array, q: Array, tokens: Array) -> Array:
        return self.ops["recover"](p=p, q=q, tokens=tokens)

    def exclude(self, p: Array, tokens: Array) -> Array:
        return self.ops["exclude"](p=p, tokens=tokens)


# (verification, p [draws vocab], q [draws vocab]) -> tokens [draws], whether they were drafted
Way = Callable[[Verification, Array, Array], tuple[Array, Array]]


def compiled(op: str) -> Op:
    def run(**inputs: Any) -> Array:
        (out,) = call(variants(op)[0], inputs).values()
        return out

    return run


NAMES = tuple(op.name for op in VERIFICATION)
FORMULAS: Mapping[str, Op] = {name: OPS[name].reference for name in NAMES}
KERNELS: Mapping[str, Op] = {name: compiled(name) for name in NAMES}


def one_draft(v: Verification, p: Array, q: Array) -> tuple[Array, Array]:
    """Modified rejection sampling of one token drawn from q."""
    drafted = v.draw(q)
    taken = v.accepted(p, q, drafted)
    return np.where(taken, drafted, v.draw(v.recover(p, q, drafted))), taken


def certain_draft(v: Verification, p: Array, q: Array) -> tuple[Array, Array]:
    """A deterministic draft, q's likeliest token: accepted if it equals a token sampled from p."""
    drafted, tokens = np.argmax(q, axis=-1), v.draw(p)
    return tokens, tokens == drafted


def siblings(count: int) -> Way:
    """`count` tokens drawn from q without replacement, tried in turn (SpecInfer)."""

    def way(v: Verification, p: Array, q: Array) -> tuple[Array, Array]:
        taken, tokens, left = np.zeros(len(p), bool), np.zeros(len(p), np.int32), p
        for _ in range(count):
            some = q.any(axis=-1, keepdims=True)  # otherwise q has no tokens left
            drafted = v.draw(np.where(some, q, 1 / q.shape[1]))
            now = v.accepted(left, q, drafted) & ~taken
            tokens, taken = np.where(now, drafted, tokens), taken | now
            left, q = v.recover(left, q, drafted), v.exclude(q, drafted)
        return np.where(taken, tokens, v.draw(left)), taken

    return way


LIKELY = 0.3


def likely_drafts(v: Verification, p: Array, q: Array) -> tuple[Array, Array]:
    """Drafts that are unlikely under q are not proposed; q is then renormalised over the others."""
    likely, drafted = normalised(np.where(q >= LIKELY, q, 0)), v.draw(q)
    taken = v.accepted(p, likely, drafted)  # not if q is 0 now, which leaves p unchanged
    return np.where(taken, drafted, v.draw(v.recover(p, likely, drafted))), taken


EXACT: Mapping[str, Way] = {
    "one draft": one_draft,
    "certain draft": certain_draft,
    "two siblings": siblings(2),
    "three siblings": siblings(3),
    "likely drafts": likely_drafts,
}


def two_in_turn(
    v: Verification, p: Array, q: Array, first: Array, second: Array
) -> tuple[Array, Array]:
    """Two drafts, each verified against the same q; then the residual max(0, p - q)."""
    taken, left = v.accepted(p, q, first), v.recover(p, q, first)
    also = v.accepted(left, q, second) & ~taken
    tokens = np.where(taken, first, np.where(also, second, v.draw(v.recover(left, q, second))))
    return tokens, taken | also


def likeliest_siblings(v: Verification, p: Array, q: Array) -> tuple[Array, Array]:
    """llama.cpp's tree: q's two likeliest tokens are drafted but accepted with p / q."""
    best = np.argsort(-q, axis=-1, kind="stable").astype(np.int32)
    return two_in_turn(v, p, q, best[:, 0].copy(), best[:, 1].copy())


def likeliest_draft(v: Verification, p: Array, q: Array) -> tuple[Array, Array]:
    """A greedy draft verified as if it were sampled from q."""
    drafted = np.argmax(q, axis=-1).astype(np.int32)
    taken = v.accepted(p, q, drafted)
    return np.where(taken, drafted, v.draw(v.recover(p, q, drafted))), taken


def target_after_rejection(v: Verification, p: Array, q: Array) -> tuple[Array, Array]:
    """The replacement sampled from p itself: accepted drafts count twice."""
    drafted = v.draw(q)
    taken = v.accepted(p, q, drafted)
    return np.where(taken, drafted, v.draw(p)), taken


def siblings_of_one_q(v: Verification, p: Array, q: Array) -> tuple[Array, Array]:
    """Two siblings without replacement, the second verified against the q of the first."""
    first = v.draw(q)
    rest = v.exclude(q, first)
    second = v.draw(np.where(rest.any(axis=-1, keepdims=True), rest, q))
    return two_in_turn(v, p, q, first, second)


def siblings_of_one_p(v: Verification, p: Array, q: Array) -> tuple[Array, Array]:
    """The second sibling verified against the p of the first."""
    first = v.draw(q)
    taken, left = v.accepted(p, q, first), v.recover(p, q, first)
    second = v.draw(q)
    also = v.accepted(p, q, second) & ~taken
    return np.where(taken, first, np.where(also, second, v.draw(left))), taken | also


def unlikely_drafts_dropped(v: Verification, p: Array, q: Array) -> tuple[Array, Array]:
    """The same verified against all of q: whether there is a draft depends on what was sampled, as
    when drafting stops before a token of low probability, or short drafts are dropped."""
    drafted = v.draw(q)
    proposed = q[np.arange(len(q)), drafted] >= LIKELY
    taken = v.accepted(p, q, drafted) & proposed
    left = np.where(proposed[:, None], v.recover(p, q, drafted), p)
    return np.where(taken, drafted, v.draw(left)), taken


def one_stream(v: Verification, p: Array, q: Array) -> tuple[Array, Array]:
    """Drafter and verifier share a seed: the draft's random number also decides its acceptance."""
    u = v.u(len(p))
    drafted = v.ops["pick"](p=q, u=u)
    taken = v.ops["accept"](p=p, q=q, tokens=drafted, u=u) > 0
    return np.where(taken, drafted, v.draw(v.recover(p, q, drafted))), taken


def draft_taken_at_its_word(v: Verification, p: Array, q: Array) -> tuple[Array, Array]:
    """Every token with p > 0 is accepted."""
    drafted = v.draw(q)
    taken = p[np.arange(len(p)), drafted] > 0
    return np.where(taken, drafted, v.draw(p)), taken


WRONG: Mapping[str, Way] = {
    "llama.cpp's tree": likeliest_siblings,
    "a greedy draft verified with q": likeliest_draft,
    "p after rejection": target_after_rejection,
    "siblings of one q": siblings_of_one_q,
    "siblings of one p": siblings_of_one_p,
    "unlikely drafts dropped": unlikely_drafts_dropped,
    "one stream of random numbers": one_stream,
    "drafts taken at their word": draft_taken_at_its_word,
}


def texts(way: Way, v: Verification, target: Array, draft: Array, length: int) -> Array:
    """Texts of `length` tokens, each after token 0: drafted as long as drafts are accepted, then
    the token recovered or picked, and from there on the target's alone.

    target, draft [vocab vocab]: row i is the distribution after token i. -> [DRAWS length].
    """
    last, drafting = np.zeros(DRAWS, np.int32), np.ones(DRAWS, bool)
    written = []
    for _ in range(length):
        here, alone = np.flatnonzero(drafting), np.flatnonzero(~drafting)
        behind, last = last, np.empty_like(last)
        last[alone] = v.draw(target[behind[alone]])
        last[here], drafting[here] = way(v, target[behind[here]], draft[behind[here]])
        written.append(last)
    return np.stack(written, axis=-1)


def law_of_texts(target: Array, length: int) -> Array:
    """The probability of every text of that length, in the order of `numbered`."""
    law = target[0]
    for _ in range(length - 1):
        law = (law.reshape(-1, len(target))[:, :, None] * target[None]).reshape(-1)
    return law


def numbered(written: Array, vocab: int) -> Array:
    """Each text as one integer. [draws length] -> [draws]."""
    return np.asarray(written @ vocab ** np.arange(written.shape[1])[::-1])


def surprise(counts: Array, law: Array) -> float:
    """n KL(counts / n || law), half the likelihood-ratio chi-square statistic, in nats; infinite if
    an impossible outcome occurred."""
    n, some = counts.sum(), counts > 0
    if (law[some] == 0).any():
        return math.inf
    return float(np.sum(counts[some] * np.log(counts[some] / (n * law[some]))))


def limit(cells: int) -> float:
    """The threshold that the surprise of `cells` possible outcomes exceeds with a probability below
    FALSE_ALARM.

    For any law and number of draws, the surprise's moment generating function is at most that of a
    gamma distribution of shape d = cells - 1 and rate 1 (Agrawal, arXiv 1904.02291), so Chernoff's
    bound is P(surprise >= x) <= exp(-(x - d - d ln(x / d))) for x > d. This x has the exponent ln(1
    / FALSE_ALARM): unlike Pearson's test it needs no minimum of expected draws in a cell.
    """
    d, wanted = cells - 1, -math.log(FALSE_ALARM)
    if not d:
        return 1e-9  # one outcome: only rounding errors of the sums
    low, high = float(d), float(d) + 10 * wanted + 10 * d
    for _ in range(100):
        x = (low + high) / 2
        low, high = (x, high) if x - d - d * math.log(x / d) < wanted else (low, x)
    return high
