"""Laws of the samplers: consequences of their definitions, on distributions that are easy to check.

Laws of filters take the op's `make`, which draws its thresholds.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from reference.laws.common import other_bits
from reference.op import Apply, Arguments, Array, Case, Law
from reference.samplers.distribution import NEARLY_ONE, most_likely_first, some_logits
from reference.softmax import softmax

GONE = np.float32(-np.inf)
GRID = 64  # steps in a nat: logits on this grid shift without rounding
SUMS = 2.0**-16  # error of sums of 64 probabilities by float32 exp of up to 32 nats
Make = Callable[[Case], Arguments]


def filter_laws(make: Make) -> tuple[Law, ...]:
    """Laws of any filter, which keeps or drops tokens."""

    def dropping(apply: Apply, case: Case) -> str:
        """Kept tokens are unchanged, dropped ones -inf; no removed token returns, and at least one
        is kept."""
        given = make(case)
        highest_below_zero = -np.abs(given["logits"])
        highest_below_zero[np.argmax(given["logits"])] = -0.0
        for logits in (given["logits"], highest_below_zero):
            out = apply({**given, "logits": logits})["out"]
            if not kept(out):
                return "no token is kept"
            if found := other_bits({"out": out}, {"out": np.where(np.isneginf(out), GONE, logits)}):
                return found
        return ""

    def shifted(apply: Apply, case: Case) -> str:
        """A constant added to all logits changes no decision, since it changes no probability."""
        given = make(ordinary(case))
        given["logits"] = on_grid(given["logits"])
        before = kept(apply(given)["out"])
        for shift in (-1024, 1024):
            after = kept(apply({**given, "logits": given["logits"] + np.float32(shift)})["out"])
            if after != before:
                return f"logits plus {shift}: other tokens are kept, such as {min(after ^ before)}"
        return ""

    return Law("drops-or-keeps-bits", dropping), Law("blind-to-a-shift", shifted)


def keeps_likeliest(make: Make) -> Law:
    """Kept tokens are a prefix in order of logits, ties by id."""

    def broken(apply: Apply, case: Case) -> str:
        given = make(case)
        stayed = kept(apply(given)["out"])
        first = most_likely_first(given["logits"])[: len(stayed)].tolist()
        if strange := stayed - set(first):
            return f"token {min(strange)} is kept, {min(set(first) - stayed)} before it is not"
        return ""

    return Law("likeliest-stay", broken)


def keeps_more(make: Make, name: str, values: Sequence[float]) -> Law:
    """With each of these values, in order, no fewer tokens are kept: one with the first, all with
    the last."""

    def broken(apply: Apply, case: Case) -> str:
        given = make(ordinary(case))
        given["logits"] = np.arange(64, dtype=np.float32)[::-1] / np.float32(4)
        counts = [len(kept(apply({**given, name: value})["out"])) for value in values]
        if counts != sorted(counts) or (counts[0], counts[-1]) != (1, 64):
            return f"of 64 tokens {counts} are kept for {name} of {list(values)}"
        return ""

    return Law(f"stay-by-{name}", broken)


def examples(name: str, wanted: Sequence[tuple[Arguments, Any]]) -> Law:
    """These inputs give these outputs: the kept tokens if a set, otherwise the only output."""

    def broken(apply: Apply, case: Case) -> str:
        for given, want in wanted:
            (out,) = apply(given).values()
            found = kept(out) if isinstance(want, set) else out.tolist()
            if found != want:
                settings = {n: v for n, v in given.items() if not isinstance(v, np.ndarray)}
                return f"{found} instead of {want} by {settings or name}"
        return ""

    return Law(name, broken)


def kept(out: Array) -> set[int]:
    return set(np.flatnonzero(~np.isneginf(out)).tolist())


def log(*p: float) -> Array:
    """Logits of these probabilities, float32."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(p), np.float32)


def ordinary(case: Case, least: int = 64) -> Case:
    """The case with ordinary numbers, and at least as many tokens as a law needs."""
    return replace(case, values="normal", shape={"vocab": max(least, case.shape["vocab"])})


def on_grid(logits: Array) -> Array:
    return (np.round(logits * GRID) / GRID).astype(np.float32)


def some_on_grid(case: Case) -> Array:
    """Ordinary logits, some of them equal, some removed."""
    return on_grid(4 * some_logits(ordinary(case), case.rng()))


# Laws of single samplers.


def k_stay(apply: Apply, case: Case) -> str:
    """Exactly k tokens are kept, or all that remain."""
    logits = some_on_grid(case)
    there = len(kept(logits))
    for k in (1, 2, 40, there, len(logits), len(logits) + 1, 2**33 + 1):
        stayed = len(kept(apply({"logits": logits, "k": k})["out"]))
        if stayed != min(k, there):
            return f"{stayed} of {there} tokens are kept for k of {k}"
    return ""


def reaches_p(apply: Apply, case: Case) -> str:
    """The kept probabilities sum to p, and less than p without the smallest."""
    logits = some_on_grid(case)
    probability = softmax(logits)
    for p in (0.01, 0.3, 0.5, 0.7, 0.95, 0.999):
        stayed = probability[list(kept(apply({"logits": logits, "p": p})["out"]))]
        if not stayed.sum() >= p - SUMS or stayed.sum() - stayed.min() >= p + SUMS:
            return f"kept probabilities sum to {stayed.sum():.6g} for p of {p}"
    return ""


def one_is_the_identity(apply: Apply, case: Case) -> str:
    """A temperature of one changes no bit, and a power of two only the exponent."""
    logits = some_logits(ordinary(case), case.rng())
    for temperature in (1.0, 0.5, 2.0, 64.0):
        out = apply({"logits": logits, "temperature": temperature})
        want = logits / np.float32(temperature)
        if found := other_bits(out, {"out": want}):
            return f"temperature {temperature}: {found}"
    return ""


def from_low_to_high(apply: Apply, case: Case) -> str:
    """One-hot logits are divided by temperature - delta, uniform ones by temperature + delta; a
    single token is unchanged."""
    settings = {"temperature": 1.0, "delta": 0.5, "exponent": 1.0}
    for words, row, divisor in (
        ("certainty", [60, 0, 0, 0, 0], 0.5),
        ("uniformity", [6, 6, 6, 6, 6], 1.5),
        ("a lone token", [3, GONE, GONE, GONE, GONE], 1.0),
    ):
        logits = np.array(row, np.float32)
        out = apply({"logits": logits, **settings})["out"]
        if not np.allclose(out, logits / divisor, rtol=2.0**-18, atol=0):
            return f"{words}, {logits.tolist()}, becomes {out.tolist()}"
    return ""


def never_favours(apply: Apply, case: Case) -> str:
    """The repetition penalty shrinks positive logits, makes negative ones more negative, and leaves
    other tokens unchanged, whatever the counts."""
    rng = case.rng()
    logits = some_logits(ordinary(case), rng)
    said = rng.choice(np.array([0, 1, 2, 256, 65536, 2**31 - 1], np.int32), len(logits))
    plain = {"counts": np.zeros_like(said), "frequency": 0.5, "presence": 0.5}
    for repetition in (1.1, 1.7):
        out = apply({"logits": logits, "repeated": said, "repetition": repetition, **plain})["out"]
        if found := other_bits({"out": out[said == 0]}, {"out": logits[said == 0]}):
            return f"tokens without a count change: {found}"
        moved = (out < logits) & (np.sign(out) == np.sign(logits))
        strange = np.flatnonzero((said > 0) & np.isfinite(logits) & (logits != 0) & ~moved)
        if strange.size:
            i = strange[0]
            return f"{logits[i]:.9g}, counted {said[i]} times, becomes {out[i]:.9g}"
    return ""


def frequency_counts(apply: Apply, case: Case) -> str:
    """A token with count n has n frequency penalties and one presence penalty."""
    counts = np.array([0, 1, 3, 255, 256, 300, 65536, 70001], np.int32)
    settings = {"repetition": 1.0, "frequency": 0.5, "presence": 0.25}
    logits = np.ones(len(counts), np.float32)
    out = apply({"logits": logits, "repeated": counts, "counts": counts, **settings})
    want = np.where(counts > 0, 1 - 0.5 * counts - 0.25, 1).astype(np.float32)
    return other_bits(out, {"out": want})


def only_what_is_named(apply: Apply, case: Case) -> str:
    """A bias changes only the listed tokens; minus infinity forbids them."""
    rng = case.rng()
    logits = some_logits(ordinary(case), rng)
    ids = rng.permutation(len(logits))[: len(logits) // 2].astype(np.int32)
    out = apply({"logits": logits, "ids": ids, "biases": np.full(len(ids), GONE)})
    want = logits.copy()
    want[ids] = GONE
    return other_bits(out, {"out": want})


def names_do_not_matter(apply: Apply, case: Case) -> str:
    """Permuting token ids permutes the penalties: DRY only compares ids."""
    rng, vocab = case.rng(), 600
    few, other = rng.permutation(vocab)[:6].astype(np.int32), rng.permutation(vocab)[:6]
    said, logits = rng.choice(4, 80, p=(0.5, 0.3, 0.15, 0.05)), np.zeros(vocab, np.float32)
    settings = {"logits": logits, "multiplier": 0.7, "base": 1.5, "allowed": 1}
    paid = []
    for ids in (few, other.astype(np.int32)):
        out = apply({**settings, "context": ids[said], "breakers": ids[3:5]})["out"]
        if strange := set(np.flatnonzero(out)) - set(ids[:3]):
            return f"token {min(strange)} has a penalty but is no repetition"
        paid.append({"out": out[ids]})
    return other_bits(*paid)


def inverse(apply: Apply, case: Case) -> str:
    """u in [c_{i-1}, c_i) gives token i, with cumulative sums c: over evenly spaced u each token
    has its probability, within one at each end."""
    logits, draws = some_on_grid(case), 256
    p = softmax(logits)
    found = [
        int(apply({"logits": logits, "u": (i + 0.5) / draws})["token"][0]) for i in range(draws)
    ]
    if found != sorted(found):
        return "a larger u gives a smaller token"
    error = np.abs(np.bincount(found, minlength=len(p)) - draws * p)
    if error.max() > 1 + draws * SUMS:
        i = int(np.argmax(error))
        return f"token {i}, of probability {p[i]:.6g}, is drawn {found.count(i)} of {draws} times"
    return ""


def lowest_of_the_largest(apply: Apply, case: Case) -> str:
    """Greedy returns the lowest id of the largest logits, wherever it is."""
    rng = case.rng()
    for at in rng.integers(0, 5000, 16):
        logits = np.full(at + 40, np.float32(-1.5))
        logits[at:] = rng.choice(np.array([-1.5, 2.5], np.float32), 40)
        logits[at] = 2.5
        token = int(apply({"logits": logits})["token"][0])
        if token != at:
            return f"{token} of {len(logits)}, the first of the largest is {at}"
    return ""


def is_certain(apply: Apply, case: Case) -> str:
    """Of n equal tokens the first is returned, with ln 1/n, whatever the logit and the removed
    tokens; other rows do not matter."""
    counts, vocab = (1, 2, 7, 300), 9000
    logits = np.full((len(counts), vocab), GONE)
    places = [np.sort(case.rng().choice(vocab, n, replace=False)) for n in counts]
    for row, where in zip(logits, places, strict=True):
        row[where] = len(where) - 5.5
    out = apply({"logits": logits})
    for i, where in enumerate(places):
        token, logprob = int(out["token"][i]), float(out["logprob"][i])
        if token != where[0] or abs(logprob + np.log(len(where))) > 2.0**-44:
            return f"{len(where)} equal logits from {where[0]} give {token} with {logprob!r}"
    return ""


def normalises(apply: Apply, case: Case) -> str:
    """exp(logit - log_sum_exp) sums to one."""
    logits = some_on_grid(case)
    out = float(apply({"logits": logits})["out"][0])
    whole = np.exp(logits.astype(np.float64) - out).sum()
    return "" if abs(whole - 1) <= 2 * SUMS else f"probabilities sum to {whole:.9g}"


def removed_weigh_nothing(apply: Apply, case: Case) -> str:
    """Removed tokens change nothing, any number of them, anywhere."""
    logits = np.full(9000, GONE)
    for some, place in enumerate((0, 300, 8999, 15, 16), 1):
        logits[place] = 2.5
        out = float(apply({"logits": logits})["out"][0])
        if abs(out - 2.5 - np.log(some)) > 2.0**-44:
            return f"{some} of 9,000 tokens left, at 2.5 each, give {out!r}"
    return ""


def moves_along(apply: Apply, case: Case) -> str:
    """A constant added to all logits is added to log_sum_exp."""
    logits = some_on_grid(case)
    before, after = (
        float(apply({"logits": logits + np.float32(shift)})["out"][0]) for shift in (0, 1024)
    )
    moved = after - before
    return "" if abs(moved - 1024) <= 2.0**-40 else f"1024 more adds {moved!r}"


HALVES = log(0.5, 0.25, 0.125, 0.125)  # surprise 1 2 3 3 bits, entropy 1.75
EVENLY = np.array([GONE, 0, GONE, 0, 0, 0, GONE], np.float32)
FOUR = np.array([0, 0, 0, 4, GONE], np.float32)  # standard deviation: root of 3
TOP = log(0.4, 0.3, 0.2, 0.1)
TIED = log(0.3, 0.3, 0.3, 0.1)
LEFT = np.array([1, GONE, 3, 2, GONE], np.float32)


def _repeats(
    context: Sequence[int], breakers: Sequence[int], penalties: dict[int, float]
) -> tuple[Arguments, list[float]]:
    given = {
        "logits": np.zeros(8, np.float32),
        "context": np.array(context, np.int32),
        "breakers": np.array(breakers, np.int32),
        "multiplier": 1.0,
        "base": 2.0,
        "allowed": 2,
    }
    return given, [-penalties.get(token, 0.0) for token in range(8)]


TOP_K = (Law("k-tokens-stay", k_stay),)
TOP_P = (Law("sums-to-p", reaches_p),)
TYPICAL = (
    examples(
        "nearest-to-the-entropy",
        [
            ({"logits": HALVES, "p": p}, stay)
            for p, stay in (
                (0.1, {1}), (0.2, {1}), (0.3, {0, 1}), (0.7, {0, 1}), (0.8, {0, 1, 2}),
                (0.9, {0, 1, 2, 3}), (1.0, {0, 1, 2, 3}),
            )
        ],
    ),
)  # fmt: skip
MIN_P = (
    examples(
        "share-of-the-likeliest",
        [
            ({"logits": HALVES, "p": p}, stay)
            for p, stay in ((1.0, {0}), (0.6, {0}), (0.4, {0, 1}), (0.2, {0, 1, 2, 3}))
        ],
    ),
)
TOP_N_SIGMA = (
    examples(
        "counts-deviations",
        [
            ({"logits": FOUR, "n": n}, stay)
            for n, stay in ((0.0, {3}), (2.0, {3}), (3.0, {0, 1, 2, 3}))
        ],
    ),
)
XTC = (
    examples(
        "top-choices-go",
        [
            ({"logits": logits, "probability": chance, "threshold": threshold, "u": u}, stay)
            for logits, chance, threshold, u, stay in (
                (TOP, 0.5, 0.15, 0.49, {2, 3}), (TOP, 0.5, 0.15, 0.5, {0, 1, 2, 3}),
                (TOP, 0.7, 0.15, 0.7 - 2.0**-40, {2, 3}), (TOP, 1.0, 0.15, NEARLY_ONE, {2, 3}),
                (TIED, 1.0, 0.2, 0.0, {2, 3}), (TOP, 1.0, 0.5, 0.0, {0, 1, 2, 3}),
                (LEFT, 1.0, 0.0, 0.0, {0}),
            )
        ],
    ),
)  # fmt: skip
MIROSTAT_V2 = (
    examples(
        "surprise-up-to-mu",
        [
            ({"logits": HALVES, "mu": mu}, stay)
            for mu, stay in (
                (-4.0, {0}),
                (0.5, {0}),
                (1.5, {0}),
                (2.5, {0, 1}),
                (3.5, {0, 1, 2, 3}),
            )
        ],
    ),
)
DRY = (
    examples(
        "repeats",
        [
            _repeats([1, 2, 3, 1, 2], [], {3: 1}),  # "1 2" again: 3 makes it a repeat of two
            _repeats([1, 2, 3, 4, 1, 2, 3], [], {4: 2}),
            _repeats([5, 1, 2, 3, 6, 1, 2, 3], [], {6: 2}),  # 5 and 6 before "1 2 3" differ
            _repeats([1, 2, 3, 1, 2], [2], {}),  # the match may not hold a breaker
            _repeats([1, 2, 3, 1, 2], [3], {}),  # a breaker is not penalised
            _repeats([1, 1, 1, 1], [], {1: 2}),
            _repeats([*[1, 2, 3, 4, 5], *[0, 1] * 200, *[1, 2, 3, 4]], [], {5: 4}),  # long ago
            _repeats([1, 2], [], {}),
            _repeats([], [], {}),
        ],
    ),
    Law("names-do-not-matter", names_do_not_matter),
)
PENALTIES = (
    Law("never-favours", never_favours),
    Law("frequency-counts", frequency_counts),
)
LOGIT_BIAS = (Law("only-what-is-named", only_what_is_named),)
TEMPERATURE = (Law("one-is-the-identity", one_is_the_identity),)
DYNAMIC_TEMPERATURE = (Law("from-low-to-high", from_low_to_high),)
GREEDY = (
    Law("lowest-of-the-largest", lowest_of_the_largest),
    examples("zeros-are-equal", [({"logits": np.array([-1, -0.0, 0, -2], np.float32)}, [1])]),
)
ARGMAX = (Law("certain-of-what-is-left", is_certain),)
DRAW = (
    Law("inverse-of-the-running-sum", inverse),
    examples(
        "ends-of-u",
        [
            ({"logits": EVENLY, "u": u}, [token])
            for u, token in ((0.0, 1), (0.24, 1), (0.25, 3), (0.74, 4), (0.75, 5), (NEARLY_ONE, 5))
        ],
    ),
)
LOG_SUM_EXP = (
    Law("normalises", normalises),
    Law("removed-weigh-nothing", removed_weigh_nothing),
    Law("moves-along", moves_along),
)
