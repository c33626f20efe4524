"""Gated linear units of feed-forward networks (Shazeer, arXiv 2002.05202): act(gate) * up."""

from collections.abc import Callable

import numpy as np

from reference import activations
from reference.activations import gelu, relu, sigmoid, sigmoid_error, silu, squared_relu
from reference.bounds import TINY, U, gamma, relative
from reference.laws.common import alone, contained, scales
from reference.laws.gated_activations import DRELU, SQUARED_REGLU, SWIGLU_OAI
from reference.op import Arguments, Array, Bound, Case, Cost, Law, Op, Shape
from reference.sizes import CORNERS_OF_ELEMENTS, ELEMENTS

SIGNATURE = "gate: f32[tokens width], up: f32[tokens width] -> out: f32[tokens width]"
CLAMPED = SIGNATURE.replace(" ->", ", alpha: f64, limit: f64 ->")


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
    """dReLU: relu(gate) * relu(up), of higher sparsity (Song et al., arXiv 2406.05955).

    Both [tokens, width] -> float64, same.
    """
    return relu(gate) * relu(up)


def swiglu_oai(gate: Array, up: Array, alpha: float, limit: float) -> Array:
    """(u + 1) * g * sigmoid(alpha * g), g = min(gate, limit), u = up clamped to [-limit, limit].

    gpt-oss (OpenAI, arXiv 2508.10925), where alpha is 1.702 and limit 7. Both scalars are rounded
    to float32; limit >= 0, and infinity means no limit. gate and up [tokens, width]
    -> float64, same.
    """
    alpha, limit = float(np.float32(alpha)), float(np.float32(limit))
    g = np.minimum(gate.astype(np.float64), limit)
    u = np.clip(up.astype(np.float64), -limit, limit)
    return np.asarray((u + 1) * g * sigmoid(alpha * g))


def make(case: Case) -> Arguments:
    rng, dims = case.rng(), (case.shape["tokens"], case.shape["width"])
    return {"gate": case.array(rng, *dims), "up": case.array(rng, *dims)}


def make_clamped(case: Case) -> Arguments:
    """Scalars are those of gpt-oss, extremes or random, in other pairs for each seed."""
    rng = case.rng()
    alphas = (1.702, 1.0, 0.0, rng.standard_normal(), -1.702, 1e30, 1e-30)
    limits = (7.0, rng.uniform(0, 2), np.inf, 0.0)
    alpha, limit = alphas[case.seed % len(alphas)], limits[case.seed % len(limits)]
    return make(case) | {"alpha": float(alpha), "limit": float(limit)}


def gated_bound(activation: Callable[[Array], Array], activation_bound: Bound) -> Bound:
    """The activation's own error, propagated through the product with up, and one rounding."""

    def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
        act = {"out": activation(inputs["gate"])}
        error = activation_bound({"x": inputs["gate"]}, act)["out"]
        up = np.abs(inputs["up"].astype(np.float64))
        return {"out": error * up * (1 + U) + relative(expected["out"], 1) + TINY}

    return bound


def clamped_bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """Clamping is exact. The sigmoid's argument is rounded twice, as alpha * g and in exp; the
    activation's own error is propagated through the product with u + 1, two roundings."""
    alpha, limit = (float(np.float32(inputs[name])) for name in ("alpha", "limit"))
    g = np.minimum(inputs["gate"].astype(np.float64), limit)
    factor = np.abs(np.clip(inputs["up"].astype(np.float64), -limit, limit) + 1)
    error = np.abs(expected["out"]) * (sigmoid_error(alpha * g, 2) + 2 * U)
    error += TINY * (1 + np.abs(g)) * factor
    return {"out": error * (1 + gamma(2)) + relative(expected["out"], 2)}


def cost(shape: Shape, format: str | None) -> Cost:
    elements = shape["tokens"] * shape["width"]
    return Cost(12 * elements, 2 * elements)


def _row(
    reference: Callable[..., Array],
    bound: Bound,
    *laws: Law,
    signature: str = SIGNATURE,
    make: Callable[[Case], Arguments] = make,
    largest: float = 2.0**127,
) -> Op:
    return Op(
        name=reference.__name__,
        reference=reference,
        signature=signature,
        axes=ELEMENTS,
        make=make,
        bound=bound,
        cost=cost,
        corners=CORNERS_OF_ELEMENTS,
        nan="element",
        largest=largest,
        laws=(
            alone(signature, make),
            alone(signature, make, "width"),
            contained(signature, make, "tokens", "width"),
            *laws,
        ),
    )


LINEAR = scales(make, ["up"], [-1, 0, 2, 0.5])
RAYS = [scales(make, [name], [0, 2, 0.5]) for name in ("gate", "up")]  # linear for x > 0

OPS = (
    _row(swiglu, gated_bound(silu, activations.silu_bound), LINEAR),
    _row(geglu, gated_bound(gelu, activations.gelu_bound), LINEAR),
    _row(reglu, gated_bound(relu, activations.relu_bound), LINEAR, RAYS[0]),
    _row(
        squared_reglu,
        gated_bound(squared_relu, activations.squared_relu_bound),
        LINEAR,
        *SQUARED_REGLU,
        largest=2.0**63,  # the square is finite, even if its product with up is not
    ),
    _row(drelu, gated_bound(relu, activations.relu_bound), *RAYS, *DRELU),
    _row(swiglu_oai, clamped_bound, *SWIGLU_OAI, signature=CLAMPED, make=make_clamped),
)
