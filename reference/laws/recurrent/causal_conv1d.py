"""Laws of the causal convolution."""

import numpy as np

from reference.op import Apply, Case, Law


def impulse(apply: Apply, case: Case) -> str:
    """A 1 at one token gives the taps in reverse at the tokens from it on, bit for bit; nothing
    else changes."""
    rng, width, taps = case.rng(), case.shape["width"], case.shape["taps"]
    tokens, at = taps + 4, 2
    weight = rng.standard_normal((taps, width), np.float32)
    x, routes = np.zeros((tokens, width), np.float32), np.full((2, tokens), -1, np.int32)
    x[at], routes[0, 0] = 1, 0
    got = apply(
        {
            "x": x,
            "weight": weight,
            "bias": np.zeros(width, np.float32),
            "before": np.zeros((2, taps - 1, width), np.float32),
            "sources": routes[0],
            "targets": routes[1],
        }
    )["out"]
    expected = np.zeros_like(x)
    expected[at : at + taps] = weight[::-1]
    wrong = (got != expected).sum()
    return f"{wrong} elements after a 1 are not the taps" if wrong else ""


LAWS = (Law("impulse", impulse),)
