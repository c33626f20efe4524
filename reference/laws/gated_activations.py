"""Laws of the gated activations, in addition to those of their factors."""

import numpy as np

from reference.laws.common import other_bits
from reference.op import Apply, Array, Case, Law


def twice_the_gate_is_four_times_as_much(apply: Apply, case: Case) -> str:
    """The square of a power of two does not round."""
    gate, up = _two(case)
    once, twice = (apply({"gate": g, "up": up})["out"] for g in (gate, 2 * gate))
    return other_bits({"out": twice}, {"out": 4 * once})


def gate_and_up_are_alike(apply: Apply, case: Case) -> str:
    """Swapping gate and up changes no bit, and a negative one gives zero."""
    gate, up = _two(case)
    out = apply({"gate": gate, "up": up})
    if (out["out"][(gate < 0) | (up < 0)] != 0).any():
        return "a negative gate or up does not give zero"
    return other_bits(apply({"gate": up, "up": gate}), out)


def beyond_the_limit_is_at_it(apply: Apply, case: Case) -> str:
    """A gate above the limit, and an up beyond it on either side, give the bits of those at it."""
    gate, up = _two(case)
    scalars = {"alpha": 1.702, "limit": 0.5}
    at = {"gate": np.minimum(gate, 0.5), "up": np.clip(up, -0.5, 0.5)}
    return other_bits(apply({"gate": gate, "up": up, **scalars}), apply({**at, **scalars}))


def up_and_one_is_a_factor(apply: Apply, case: Case) -> str:
    """An up of -1 gives zero; 1, 3 and 7 give two, four and eight times the output for 0,
    exactly."""
    gate, _ = _two(case)
    rest = {"gate": gate, "alpha": 1.702, "limit": 7.0}
    once = apply({**rest, "up": np.zeros_like(gate)})["out"]
    for up in (-1, 1, 3, 7):
        if (apply({**rest, "up": np.full_like(gate, up)})["out"] != (up + 1) * once).any():
            return f"an up of {up} is not {up + 1} times one of 0"
    return ""


def _two(case: Case) -> tuple[Array, Array]:
    dims = max(3, case.shape["tokens"]), max(5, case.shape["width"])
    gate, up = case.rng().standard_normal((2, *dims), np.float32)
    return gate, up


SQUARED_REGLU = (Law("gate-is-squared", twice_the_gate_is_four_times_as_much),)
DRELU = (Law("gate-and-up-are-alike", gate_and_up_are_alike),)
SWIGLU_OAI = (
    Law("beyond-the-limit-is-at-it", beyond_the_limit_is_at_it),
    Law("up-and-one-is-a-factor", up_and_one_is_a_factor),
)
