"""Laws of mixture-of-experts routing."""

import numpy as np

from reference.op import Apply, Case, Law


def none_is_better(apply: Apply, case: Case) -> str:
    """The chosen experts are distinct and ascending, and no other one has a better score."""
    rng, (tokens, experts, used) = case.rng(), case.shape.values()
    scores = rng.standard_normal((tokens, experts), np.float32)
    plain = {"bias": np.zeros(experts, np.float32), "used": used, "groups": 1, "kept": 1}
    chosen = apply({"scores": scores, **plain})["chosen"]
    if (np.diff(chosen, axis=-1) <= 0).any():
        return "an expert is chosen twice, or out of order"
    left = scores.copy()
    np.put_along_axis(left, chosen.astype(np.int64), -np.inf, axis=-1)
    least = np.take_along_axis(scores, chosen.astype(np.int64), axis=-1).min(axis=-1)
    return "a better expert is not chosen" if (left.max(axis=-1) > least).any() else ""


def bias_decides(apply: Apply, case: Case) -> str:
    """Experts with a bias beyond all scores are chosen."""
    rng, (tokens, experts, used) = case.rng(), case.shape.values()
    scores = rng.random((tokens, experts), np.float32)
    bias = np.zeros(experts, np.float32)
    liked = np.sort(rng.permutation(experts)[:used])
    bias[liked] = 8
    given = {"scores": scores, "bias": bias, "used": used, "groups": 1, "kept": 1}
    return "" if (apply(given)["chosen"] == liked).all() else "a large bias does not decide"


def equals_go_by_number(apply: Apply, case: Case) -> str:
    """Of equal scores the lower indices are chosen."""
    tokens, experts, used = case.shape.values()
    given = {"scores": np.ones((tokens, experts), np.float32), "used": used, "groups": 1, "kept": 1}
    chosen = apply({**given, "bias": np.zeros(experts, np.float32)})["chosen"]
    return "" if (chosen == np.arange(used)).all() else "of equal scores the first are not chosen"


def best_group_alone(apply: Apply, case: Case) -> str:
    """If one of two groups is kept, all chosen experts are in the one with the better top two."""
    rng, tokens, size = case.rng(), case.shape["tokens"], max(2, case.shape["used"])
    scores = rng.random((tokens, 2 * size), np.float32) * np.float32(0.1)
    which = rng.integers(0, 2, tokens)
    rows = np.arange(tokens)
    scores[rows, which * size] += 1
    scores[rows, which * size + 1] += 1
    scores[rows, (1 - which) * size] += np.float32(1.25)  # a single better expert is not enough
    bias = np.zeros(2 * size, np.float32)
    given = {"scores": scores, "bias": bias, "used": size, "groups": 2, "kept": 1}
    chosen = apply(given)["chosen"]
    return "" if (chosen // size == which[:, None]).all() else "one is of the other group"


def sums_to_one(apply: Apply, case: Case) -> str:
    """Gates that are not tiny are normalised to a sum of 1, but for rounding."""
    weights = np.asarray(case.rng().uniform(0.01, 1, tuple(case.shape.values())), np.float32)
    off = np.abs(apply({"weights": weights})["out"].sum(axis=-1, dtype=np.float64) - 1)
    return "shares do not sum to 1" if (off > 2.0**-20).any() else ""


def places_are_where_pairs_went(apply: Apply, case: Case) -> str:
    """A pair's place has its token and expert, and runs are consecutive up to the last pair."""
    rng, (tokens, experts, used) = case.rng(), case.shape.values()
    drawn = np.argsort(rng.random((tokens, experts)), axis=-1)[:, :used]
    chosen = np.sort(drawn, axis=-1).astype(np.int32)
    got = apply({"chosen": chosen, "experts": experts})
    places, ends = got["places"], got["ends"]
    if (got["rows"][places] != np.arange(tokens)[:, None]).any():
        return "a place has the token of another pair"
    if (got["expert"][places] != chosen).any():
        return "a place has the expert of another pair"
    if (np.sort(places, axis=None) != np.arange(tokens * used)).any():
        return "two pairs share a place"
    counts = np.bincount(chosen.ravel(), minlength=experts)
    if (np.diff(ends, prepend=0) != counts).any():
        return "a run's length differs from its number of pairs"
    needed = got["needed"][: got["count"][0]]
    same = np.array_equal(needed, np.unique(chosen))
    return "" if same else "the needed experts are not the chosen ones"


LAWS = (
    Law("none-is-better", none_is_better),
    Law("bias-decides", bias_decides),
    Law("equals-go-by-number", equals_go_by_number),
    Law("best-group-alone", best_group_alone),
)
SUMS = Law("sums-to-one", sums_to_one)
SORTED = Law("places-are-where-pairs-went", places_are_where_pairs_went)
