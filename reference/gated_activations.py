"""Gated activations of feed-forward networks: act(gate) * up (Shazeer, arXiv 2002.05202)."""

from collections.abc import Callable

import numpy as np

from reference import activations
from reference.activations import gelu, relu, silu, squared_relu
from reference.bounds import TINY, U, relative
from reference.op import Arguments, Array, Bound, Case, Cost, Op, Shape


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
) -> Op:
    return Op(
        name=reference.__name__,
        reference=reference,
        signature="gate: f32[tokens width], up: f32[tokens width] -> out: f32[tokens width]",
        axes={"tokens": (0, 1, 2, 7), "width": (1, 2, 31, 33, 127, 1000)},
        make=make,
        bound=gated_bound(activation, activation_bound),
        cost=cost,
        nan="element",
    )


OPS = (
    _row(swiglu, silu, activations.silu_bound),
    _row(geglu, gelu, activations.gelu_bound),
    _row(reglu, relu, activations.relu_bound),
    _row(squared_reglu, squared_relu, activations.squared_relu_bound),
    _row(drelu, relu, activations.relu_bound),
)
