"""Gated activations of feed-forward networks: act(gate) * up (Shazeer, arXiv 2002.05202)."""

from collections.abc import Callable

import numpy as np

from reference import activations
from reference.activations import gelu, relu, silu, squared_relu
from reference.bounds import TINY, U, relative
from reference.laws.common import alone, contained, scales
from reference.laws.gated_activations import DRELU, SQUARED_REGLU
from reference.op import Arguments, Array, Bound, Case, Cost, Law, Op, Shape
from reference.sizes import CORNERS_OF_ELEMENTS, ELEMENTS

SIGNATURE = "gate: f32[tokens width], up: f32[tokens width] -> out: f32[tokens width]"


def swiglu(gate: Array, up: Array) -> Array:
    """silu(gate) * up. Both [tokens, width] -> float64, same."""
    return silu(gate) * up


def geglu(gate: Array, up: Array) -> Array:
    """gelu(gate) * up. Both [tokens, width] -> float64, same."""
    return gelu(gate) * up


def reglu(gate: Array, up: Array) -> Array:
    """relu(gate) * up. Both [tokens, width] -> float64, same."""
    return relu(gate) * up


def squared_reglu(gate: Array, up: Array) -> Array:
    """relu(gate)^2 * up. Both [tokens, width] -> float64, same."""
    return squared_relu(gate) * up


def drelu(gate: Array, up: Array) -> Array:
    """relu(gate) * relu(up), which more neurons leave at zero (Song et al., arXiv 2406.05955).

    Both [tokens, width] -> float64, same.
    """
    return relu(gate) * relu(up)


def make(case: Case) -> Arguments:
    rng, dims = case.rng(), (case.shape["tokens"], case.shape["width"])
    return {"gate": case.array(rng, *dims), "up": case.array(rng, *dims)}


def gated_bound(activation: Callable[[Array], Array], activation_bound: Bound) -> Bound:
    """The activation's own error, carried through the product with up, and one rounding."""

    def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
        act = {"out": activation(inputs["gate"])}
        error = activation_bound({"x": inputs["gate"]}, act)["out"]
        up = np.abs(inputs["up"].astype(np.float64))
        return {"out": error * up * (1 + U) + relative(expected["out"], 1) + TINY}

    return bound


def cost(shape: Shape, format: str | None) -> Cost:
    elements = shape["tokens"] * shape["width"]
    return Cost(12 * elements, 2 * elements)


def _row(
    reference: Callable[[Array, Array], Array],
    activation: Callable[[Array], Array],
    activation_bound: Bound,
    *laws: Law,
    largest: float = 2.0**127,
) -> Op:
    return Op(
        name=reference.__name__,
        reference=reference,
        signature=SIGNATURE,
        axes=ELEMENTS,
        make=make,
        bound=gated_bound(activation, activation_bound),
        cost=cost,
        corners=CORNERS_OF_ELEMENTS,
        nan="element",
        largest=largest,
        laws=(
            alone(SIGNATURE, make),
            alone(SIGNATURE, make, "width"),
            contained(SIGNATURE, make, "tokens", "width"),
            *laws,
        ),
    )


LINEAR = scales(make, ["up"], [-1, 0, 2, 0.5])
RAYS = [scales(make, [name], [0, 2, 0.5]) for name in ("gate", "up")]  # linear above zero

OPS = (
    _row(swiglu, silu, activations.silu_bound, LINEAR),
    _row(geglu, gelu, activations.gelu_bound, LINEAR),
    _row(reglu, relu, activations.relu_bound, LINEAR, RAYS[0]),
    _row(
        squared_reglu,
        squared_relu,
        activations.squared_relu_bound,
        LINEAR,
        *SQUARED_REGLU,
        largest=2.0**63,  # the square is a number, whatever its product with up
    ),
    _row(drelu, relu, activations.relu_bound, *RAYS, *DRELU),
)
