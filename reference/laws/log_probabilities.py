"""Laws of 16-bit log-probabilities, and of the KL divergence from them."""

import numpy as np

from reference.bounds import U
from reference.laws.common import other_bits
from reference.laws.samplers import log, some_on_grid
from reference.op import Apply, Arguments, Array, Case, Law

# Error of a divergence of up to 32 nats: each of its terms, weighted by p, has fewer than 32
# roundings of numbers up to 32, and logits that a law rounds move ln q by as much.
SLACK = 2048 * U


def log_softmax(logits: Array) -> Array:
    depth = logits.astype(np.float64) - np.float64(logits.max())
    return np.asarray(depth - np.log(np.exp(depth).sum()))


def half_a_step(apply: Apply, case: Case) -> str:
    """Log-probabilities are decoded to within half a step of at most 16 / 65535 nats, clipped to 16
    below the likeliest."""
    for deep in (1, 4):
        logits = deep * some_on_grid(case)
        base, exact = apply({"logits": logits}), log_softmax(logits)
        (step, least), found = base["line"].astype(np.float64), base["codes"]
        error = np.abs(step * found + least - np.maximum(exact, exact.max() - 16)).max()
        if step > 16 / 65535 * (1 + 2 * U):
            return f"the step is {step:.9g} nats"
        # three roundings of codes up to 65535 are a sixty-fourth of a step
        if not error <= step * (1 / 2 + 1 / 64) + 64 * U:
            return f"off by {error / step:.6g} steps"
    return ""


def order_stays(apply: Apply, case: Case) -> str:
    """Codes are monotonic in the logits; the likeliest has the largest code."""
    for logits in (some_on_grid(case), np.full(40, 2.5, np.float32)):
        codes = apply({"logits": logits})["codes"][np.argsort(logits)].astype(int)
        if (np.diff(codes) < 0).any():
            return "a likelier token has a smaller code"
        if codes[-1] != (65535 if logits.min() < logits.max() else 0):
            return f"the likeliest has the code {codes[-1]}"
    return ""


def some_base(case: Case) -> tuple[Arguments, Array]:
    """Codes of a distribution that sums to 1.25, down to 24 nats below the likeliest token, so that
    some are skipped; and the decoded log-probabilities, float64."""
    logits, scale = some_on_grid(case), 2.0**-11
    depth = np.minimum(logits.max() - logits, 24)
    codes = (65535 - np.round(depth / scale)).astype(np.uint16)
    above = scale * codes.astype(np.float64)
    line = np.array([scale, np.log(1.25 / np.exp(above).sum())], np.float32)
    return {"codes": codes, "line": line}, above + np.float64(line[1])


def from_itself(apply: Apply, case: Case) -> str:
    """The divergence of S p from p is ln S for each part of it; skipped tokens are no part."""
    base, said = some_base(case)
    p = np.exp(said)
    want = p[said > -16].sum() * np.log(p.sum())
    got = float(apply({"logits": said.astype(np.float32), **base})["out"][0])
    return "" if abs(got - want) <= SLACK else f"{got:.9g} nats, not {want:.9g}"


def not_below_zero(apply: Apply, case: Case) -> str:
    """sum p ln p / q >= S ln S with S = sum p, for any q: the log-sum inequality."""
    (base, said), rng = some_base(case), case.rng()
    whole = np.exp(said[said > -16]).sum()
    least = whole * np.log(whole)
    for width in (0.01, 1, 4):
        logits = said + np.clip(rng.normal(0, width, len(said)), -16, 16)
        got = float(apply({"logits": logits.astype(np.float32), **base})["out"][0])
        if not got >= least - SLACK:
            return f"{got:.9g} nats, below {least:.9g}"
    return ""


def textbook(apply: Apply, case: Case) -> str:
    """(1/2 1/4 1/4) against a uniform third: ln 3 - 3/2 ln 2 nats; the reverse differs."""
    skewed, third = log(0.5, 0.25, 0.25), log(1 / 3, 1 / 3, 1 / 3)
    halves: Arguments = {
        "codes": np.array([65535, 0, 0], np.uint16),
        "line": np.array([np.log(2) / 65535, np.log(0.25)], np.float32),
    }
    thirds: Arguments = {
        "codes": np.zeros(3, np.uint16), "line": np.array([0, np.log(1 / 3)], np.float32)
    }  # fmt: skip
    for logits, base, want in (
        (third, halves, np.log(3) - 1.5 * np.log(2)),
        (skewed, thirds, (2 * np.log(4 / 3) + np.log(2 / 3)) / 3),
    ):
        got = float(apply({"logits": logits, **base})["out"][0])
        if not abs(got - want) <= SLACK:
            return f"{got:.9g} nats, not {want:.9g}"
    return ""


def blind_to_a_shift(apply: Apply, case: Case) -> str:
    """Logits on a grid shift without rounding, after which only float64 arithmetic changes."""
    base, _ = some_base(case)
    logits = np.maximum(some_on_grid(case), -30)
    still, *moved = (
        float(apply({"logits": logits + np.float32(shift), **base})["out"][0])
        for shift in (0, -1024, 1024)
    )
    error = max(abs(found - still) for found in moved)
    return f"a shift of 1024 changes it by {error:.3g} nats" if not error <= 2.0**-40 else ""


def forgotten_count_for_nothing(apply: Apply, case: Case) -> str:
    """A token of base probability below e^-16 may have any logit far below the others."""
    line = np.array([16 / 65535, -16.5], np.float32)
    given = {"codes": np.array([65535, 60000, 0, 4000], np.uint16), "line": line}
    sums = [
        apply({"logits": np.array([0, -1, far, -15.5], np.float32), **given})
        for far in (-120, -1000)
    ]
    return other_bits(*sums)


QUANTISE = (Law("half-a-step", half_a_step), Law("order-stays", order_stays))
DIVERGENCE = (
    Law("from-itself", from_itself),
    Law("not-below-zero", not_below_zero),
    Law("textbook", textbook),
    Law("blind-to-a-shift", blind_to_a_shift),
    Law("forgotten-count-for-nothing", forgotten_count_for_nothing),
)
