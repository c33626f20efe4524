"""Laws of accept, recover, exclude and pick, by which speculation keeps the target's distribution.

Some take the op's `make`, which draws its distributions.
"""

from collections.abc import Callable

import numpy as np

from reference.laws.common import other_bits, several
from reference.op import Apply, Arguments, Array, Case, Law
from reference.samplers.distribution import LEAST, NEARLY_ONE

SUMS = 2.0**-40  # ample for rounding errors of sums of up to 1,000 probabilities
Make = Callable[[Case], Arguments]


def decisions(apply: Apply, p: float, q: float, u: Array) -> Array:
    """The decisions on token 1 of two, with probabilities p and q, for each u. bool [nodes]"""
    nodes = len(u)
    rows = {name: np.repeat([[1 - x, x]], nodes, axis=0) for name, x in (("p", p), ("q", q))}
    given = {**rows, "tokens": np.ones(nodes, np.int32), "u": u}
    return np.asarray(apply(given)["accepted"] == 1)


def impossible_is_rejected(apply: Apply, case: Case) -> str:
    """p(x) = 0 is never accepted, even with u = 0; q(x) = 0 is no proposal."""
    u = np.array([0.0, 0.25, 0.5, NEARLY_ONE])
    for p, q in ((0.0, 0.5), (0.0, 0.0), (0.0, LEAST), (0.5, 0.0), (1.0, 0.0)):
        if decisions(apply, p, q, u).any():
            return f"accepted where p is {p:g} and q {q:g}"
    return ""


def equals_are_accepted(apply: Apply, case: Case) -> str:
    """p >= q is accepted for every u < 1; the product's rounding could change that only among
    subnormal numbers."""
    rng = case.rng()
    for p in (1.0, 2.0**-1021, *rng.random(8), *2.0 ** -rng.uniform(0, 1000, 8)):
        for q in (p, p / 2):
            if not decisions(apply, p, q, np.array([0.0, 0.5, NEARLY_ONE])).all():
                return f"rejected where p is {p!r} and q {q!r}"
    return ""


def share_is_the_ratio(apply: Apply, case: Case) -> str:
    """Of evenly spaced u in [0, 1) those below p / q are accepted, and the ratio itself is not; a
    deterministic draft has q = 1."""
    rng, draws = case.rng(), 512
    u = np.arange(draws) / draws
    for numerator in (1, 64, 384, 511, *rng.integers(1, draws, 4)):
        for q in (1.0, 0.5, 2.0**-30):
            accepted = decisions(apply, numerator / draws * q, q, u)
            if accepted.tolist() != [True] * numerator + [False] * (draws - numerator):
                return f"{accepted.sum()} of {draws} accepted for a ratio of {numerator}/{draws}"
    return ""


def recover_laws(make: Make) -> tuple[Law, ...]:
    def gives_the_target(apply: Apply, case: Case) -> str:
        """min(p, q) + (1 - sum min(p, q)) recover = p: the proof of modified rejection sampling."""
        given = make(several(case, "nodes"))
        p, q, tokens = given["p"], given["q"], given["tokens"]
        both = np.minimum(p, q)
        total = both + (1 - both.sum(axis=-1, keepdims=True)) * apply(given)["out"]
        drawable = q[np.arange(len(p)), tokens] > 0
        error = np.abs(total - p)[drawable]
        return f"the whole is off by {error.max():.3g}" if not (error <= SUMS).all() else ""

    def only_what_was_underrated(apply: Apply, case: Case) -> str:
        """Rows sum to one and stay within p's support; a token that was drawn and rejected, with p
        < q, has probability 0."""
        given = make(several(case, "nodes"))
        p, q, tokens = given["p"], given["q"], given["tokens"]
        out, rows = apply(given)["out"], np.arange(len(p))
        if not np.allclose(out.sum(axis=-1), 1, rtol=SUMS, atol=0):
            return "a row does not sum to one"
        if (p[out > 0] == 0).any():
            return "a token with p = 0 has a probability"
        changed = (out != p).any(axis=-1)
        if (p[changed] <= q[changed])[out[changed] > 0].any():
            return "a token with p <= q has a probability"
        overrated = changed & (p[rows, tokens] < q[rows, tokens])
        return "the rejected token has a probability" if out[rows, tokens][overrated].any() else ""

    def nothing_left_nothing_changed(apply: Apply, case: Case) -> str:
        """p = q, p below q by rounding, and tokens that q cannot give return p's own bits."""
        given = make(several(case, "nodes"))
        p, tokens = given["p"], given["tokens"]
        shaved, impossible = np.minimum(np.nextafter(p, 0), p), p.copy()
        impossible[np.arange(len(p)), tokens] = 0
        for words, own, q in (
            ("q is p", p, p), ("p equals q but for rounding", shaved, p),
            ("q(x) is 0", p, impossible),
        ):  # fmt: skip
            if found := other_bits(apply({"p": own, "q": q, "tokens": tokens}), {"out": own}):
                return f"{words}: {found}"
        return ""

    return (
        Law("gives-the-target", gives_the_target),
        Law("only-what-was-underrated", only_what_was_underrated),
        Law("nothing-left-nothing-changed", nothing_left_nothing_changed),
    )


def tiny_masses(apply: Apply, case: Case) -> str:
    """A residual of the smallest numbers is normalised all the same."""
    p = np.array([[1.0, 3 * LEAST, LEAST], [0.5, 0.5, 2.0**-60]])
    q = np.array([[1.0, 0, 0], [0.5, 0.5, 0]])
    out = apply({"p": p, "q": q, "tokens": np.array([0, 1], np.int32)})["out"]
    want = [[0, 0.75, 0.25], [0, 0, 1]]
    return "" if out.tolist() == want else f"{out.tolist()}, not {want}"


def exclude_laws(make: Make) -> tuple[Law, ...]:
    def proportions_stay(apply: Apply, case: Case) -> str:
        """The token becomes 0, the others keep their ratios and sum to one, or all are 0."""
        given = make(several(case, "nodes"))
        rest, tokens, out = given["p"].copy(), given["tokens"], apply(given)["out"]
        rest[np.arange(len(rest)), tokens] = 0
        if out[rest == 0].any():
            return "an excluded or impossible token has a probability"
        mass = rest.sum(axis=-1, keepdims=True)
        if not np.allclose(out.sum(axis=-1), mass[:, 0] > 0, rtol=SUMS, atol=0):
            return "a row does not sum to one"
        if not np.allclose(out * mass, rest, rtol=SUMS, atol=2 * LEAST):
            return "tokens do not keep their ratios"
        return ""

    return (Law("proportions-stay", proportions_stay),)


def pick_laws(make: Make) -> tuple[Law, ...]:
    def possible(apply: Apply, case: Case) -> str:
        """A token of p = 0 is never picked for any u; a certain one always is."""
        given = make(several(case, "nodes"))
        p, tokens = given["p"], apply(given)["tokens"]
        if (p[np.arange(len(p)), tokens] == 0).any():
            return "a token of probability zero is picked"
        certain = np.zeros_like(p)
        certain[np.arange(len(p)), tokens] = 1
        return other_bits(apply({**given, "p": certain}), {"tokens": tokens})

    return (Law("possible", possible),)


def each_has_its_share(apply: Apply, case: Case) -> str:
    """Of evenly spaced u each token has its probability, in order of ids, for rows of any sum; the
    ends of [0, 1) give the first and the last possible one."""
    shares = case.rng().integers(0, 3, min(max(70, case.shape["vocab"]), 300))
    shares[1] = 1  # at least one
    draws = int(shares.sum())
    u = np.concatenate([[0.0], (np.arange(draws) + 0.5) / draws, [NEARLY_ONE]])
    every = np.repeat(np.arange(len(shares)), shares)
    want = np.concatenate([every[:1], every, every[-1:]])
    for whole in (1.0, 0.5, 2.0**-40, 2.0**-1060):
        scaled = np.repeat(shares[None] * (whole * 2.0**-10), len(u), axis=0)
        tokens = apply({"p": scaled, "u": u})["tokens"]
        if (strange := np.flatnonzero(tokens != want)).size:
            i = strange[0]
            return f"u of {u[i]!r} picks {tokens[i]}, not {want[i]}, where rows sum to {whole:g}"
    return ""


ACCEPT = (
    Law("impossible-is-rejected", impossible_is_rejected),
    Law("equals-are-accepted", equals_are_accepted),
    Law("share-is-the-ratio", share_is_the_ratio),
)
RECOVER = (Law("tiny-masses", tiny_masses),)
PICK = (Law("each-has-its-share", each_has_its_share),)
