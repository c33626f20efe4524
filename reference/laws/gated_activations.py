"""Laws of the gated activations, beside those of the factors that they have."""

import numpy as np

from reference.laws.common import other_bits
from reference.op import Apply, Array, Case, Law


def twice_the_gate_is_four_times_as_much(apply: Apply, case: Case) -> str:
    """The square of a power of two rounds nothing."""
    gate, up = _two(case)
    once, twice = (apply({"gate": g, "up": up})["out"] for g in (gate, 2 * gate))
    return other_bits({"out": twice}, {"out": 4 * once})


def gate_and_up_are_alike(apply: Apply, case: Case) -> str:
    """Exchanging them changes no bit, and either below zero gives zero."""
    gate, up = _two(case)
    out = apply({"gate": gate, "up": up})
    if (out["out"][(gate < 0) | (up < 0)] != 0).any():
        return "below zero something is left"
    return other_bits(apply({"gate": up, "up": gate}), out)


def _two(case: Case) -> tuple[Array, Array]:
    dims = max(3, case.shape["tokens"]), max(5, case.shape["width"])
    gate, up = case.rng().standard_normal((2, *dims), np.float32)
    return gate, up


SQUARED_REGLU = (Law("gate-is-squared", twice_the_gate_is_four_times_as_much),)
DRELU = (Law("gate-and-up-are-alike", gate_and_up_are_alike),)
