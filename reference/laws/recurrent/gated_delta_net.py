"""Laws of the gated delta rule."""

import numpy as np

from reference.laws.common import other_bits
from reference.op import Apply, Arguments, Array, Case, Law

TOKENS, GROUPS, HEADS, STATE = 6, 2, 4, 8


def written(k: Array, v: Array) -> Arguments:
    """Values stored whole under keys without decay, in an initially zero state; each token reads
    its own key."""
    tokens, heads, head_dim = v.shape
    sources = np.full(tokens, -1, np.int32)
    sources[0] = 0
    return {
        "q": k,
        "k": k,
        "v": v,
        "g": np.zeros((tokens, heads), np.float32),
        "beta": np.ones((tokens, heads), np.float32),
        "group_of": np.arange(heads, dtype=np.int32) % k.shape[1],
        "before": np.zeros((2, heads, k.shape[2], head_dim), np.float32),
        "sources": sources,
        "targets": np.full(tokens, -1, np.int32),
    }


def whole_values(case: Case, tokens: int = TOKENS) -> Array:
    """Small integers, whose sums are exact."""
    drawn = case.rng().integers(-99, 100, (tokens, HEADS, case.shape["head_dim"]))
    return drawn.astype(np.float32)


def key_by_key(rows: list[int]) -> Array:
    """One-hot keys, each group's being the next."""
    places = (np.array(rows)[:, None] + np.arange(GROUPS)) % STATE
    return np.eye(STATE, dtype=np.float32)[places]


def a_key_has_its_last_value(apply: Apply, case: Case) -> str:
    """Storing a value under a key replaces the previous one, and no other key's: exactly."""
    keys = [0, 1, 2, 1, 0, 3, 4, 4]
    again = [0, 1, 2, 3, 4]
    v = whole_values(case, len(keys) + len(again))
    given = written(key_by_key([*keys, *again]), v)
    given["beta"][len(keys) :] = 0
    last = {key: at for at, key in enumerate(keys)}
    wanted = np.concatenate([v[: len(keys)], v[[last[key] for key in again]]])
    got = apply(given)["out"]
    wrong = np.flatnonzero((got != wanted).any(axis=(1, 2)))
    return f"tokens {wrong} read other values than were stored" if wrong.size else ""


def nothing_is_put(apply: Apply, case: Case) -> str:
    """beta = 0 without decay leaves a state unchanged, bit for bit."""
    rng, v = case.rng(), whole_values(case)
    given = written(key_by_key(list(range(TOKENS))), v)
    given["before"] = 1 + rng.random(given["before"].shape, np.float32)
    given["beta"][:] = 0
    given["targets"][-1] = 1
    after = apply(given)["states"]
    return other_bits({"states": after[1]}, {"states": given["before"][0]})


def nothing_is_kept(apply: Apply, case: Case) -> str:
    """With full decay, a token's output does not depend on earlier tokens."""
    rng, v = case.rng(), whole_values(case)
    k = rng.standard_normal((TOKENS, GROUPS, STATE), np.float32)
    k /= np.sqrt((k * k).sum(axis=-1, keepdims=True))
    given = written(k, v)
    given["g"][:] = -1e6
    whole = apply(given)["out"]
    apart = apply({**given, "sources": np.zeros_like(given["sources"])})["out"]
    return other_bits({"out": whole}, {"out": apart})


LAWS = (
    Law("a-key-has-its-last-value", a_key_has_its_last_value),
    Law("nothing-is-put", nothing_is_put),
    Law("nothing-is-kept", nothing_is_kept),
)
