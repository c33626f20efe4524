"""Elementwise activations act(x): SiLU, GELU (tanh and erf forms), ReLU, squared ReLU, softplus and
sigmoid, for x [tokens, width]. Each function names its paper."""

import math
from collections.abc import Callable

import numpy as np

from reference.bounds import EXP, TINY, U, gamma, relative
from reference.laws.activations import LAWS
from reference.laws.common import alone, contained
from reference.op import Arguments, Array, Bound, Case, Cost, Op, Shape
from reference.sizes import CORNERS_OF_ELEMENTS, ELEMENTS

SIGNATURE = "x: f32[tokens width] -> out: f32[tokens width]"


def silu(x: Array) -> Array:
    """x * sigmoid(x) (Elfwing et al., arXiv 1702.03118). x [tokens, width] -> float64, same."""
    return x.astype(np.float64) * sigmoid(x)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow of exp. x [tokens, width] -> float64, same."""
    x = x.astype(np.float64)
    power = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1, power) / (1 + power))


def gelu(x: Array) -> Array:
    """GELU's tanh approximation (Hendrycks and Gimpel, arXiv 1606.08415), as in ggml.

    x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) = x * sigmoid(2 * the same argument).
    x [tokens, width] -> float64, same.
    """
    x = x.astype(np.float64)
    return x * sigmoid(2 * gelu_argument(x))


def gelu_argument(x: Array) -> Array:
    return np.asarray(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))


def gelu_erf(x: Array) -> Array:
    """GELU, x * Phi(x) (Hendrycks and Gimpel, arXiv 1606.08415), with the standard normal CDF Phi.

    Phi(x) = erfc(-x / sqrt(2)) / 2. x [tokens, width] -> float64, same.
    """
    x = x.astype(np.float64)
    return x * normal_cdf(x)


def normal_cdf(x: Array) -> Array:
    """Phi(x), the standard normal CDF, by erfc: accurate far below zero, where 1 + erf cancels."""
    return np.asarray(np.frompyfunc(math.erfc, 1, 1)(-x / np.sqrt(2)) / 2, np.float64)


def relu(x: Array) -> Array:
    """max(x, 0). x [tokens, width] -> float64, same."""
    return np.maximum(x.astype(np.float64), 0)


def squared_relu(x: Array) -> Array:
    """max(x, 0)^2 (So et al., arXiv 2109.08668). x [tokens, width] -> float64, same."""
    return relu(x) ** 2


def softplus(x: Array) -> Array:
    """log(1 + exp(x)), arranged so that exp never overflows. x [tokens, width] -> float64, same."""
    return np.logaddexp(0, x.astype(np.float64))


# Coefficients of P in gelu_erf_bound, from t^0.
ERFC = np.array(
    [-1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398,
     1.48851587, -0.82215223, 0.17087277]
)  # fmt: skip


def make(case: Case) -> Arguments:
    return {"x": case.array(case.rng(), case.shape["tokens"], case.shape["width"])}


def sigmoid_error(argument: Array, roundings: float) -> Array:
    """Relative error of a float32 sigmoid whose argument has this many roundings.

    d log sigmoid / da = 1 - sigmoid(a), so the argument's error counts only where a < 0.
    """
    slope = sigmoid(-argument)
    return np.asarray(slope * np.abs(argument) * roundings * U + EXP + 3 * U)


def silu_bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    x = inputs["x"].astype(np.float64)
    return {"out": np.abs(expected["out"]) * (sigmoid_error(x, 1) + 2 * U) + TINY * (1 + np.abs(x))}


def gelu_bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """The argument is a polynomial of eight roundings, whose terms have the same sign."""
    x = inputs["x"].astype(np.float64)
    argument = 2 * gelu_argument(x)
    relative_error = sigmoid_error(argument, 8) + 2 * U
    out = np.abs(expected["out"]) * relative_error + TINY * (1 + np.abs(x))
    return {"out": out}


def gelu_erf_bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """erfc(z) = t exp(-z^2 + P(t)), with t = 1 / (1 + z / 2) and P of degree nine, has a relative
    error below 1.2e-7 for z >= 0 (Press et al., Numerical Recipes, 2nd edition, 6.2).

    In float32 the exponent has three roundings of z^2 and those of P: twenty on its terms, and four
    on t, which P's slope multiplies. The result is max(x, 0) - |x| times the tail.
    """
    x = inputs["x"].astype(np.float64)
    t = 1 / (1 + np.abs(x) / np.sqrt(8))
    powers = t[..., None] ** np.arange(len(ERFC))
    terms = powers @ np.abs(ERFC)
    slope = powers @ (np.abs(ERFC) * np.arange(len(ERFC)))
    exponent = 1.5 * x * x * U + (20 * terms + 4 * slope) * U
    taken = np.abs(relu(x) - expected["out"])
    error = taken * (1.2e-7 + np.expm1(np.minimum(exponent, 1)) + EXP + 8 * U)
    return {"out": error + relative(expected["out"], 2) + TINY * (1 + np.abs(x))}


def relu_bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """Zero: nothing rounds."""
    return {"out": np.zeros_like(expected["out"])}


def squared_relu_bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    return {"out": relative(expected["out"], 1)}


def softplus_bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """For max(x, 0) + log1p(e), e = exp(-|x|): e has exp's error, which log1p's slope does not
    amplify; log1p, for example the series of 2 atanh(e / (2 + e)), has at most six roundings, and
    the sum one."""
    return {"out": np.abs(expected["out"]) * (EXP + gamma(7)) + TINY}


def sigmoid_bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    x = inputs["x"].astype(np.float64)
    return {"out": np.abs(expected["out"]) * (sigmoid_error(x, 1) + U) + TINY}


def cost(shape: Shape, format: str | None) -> Cost:
    elements = shape["tokens"] * shape["width"]
    return Cost(8 * elements, elements)


def _row(reference: Callable[[Array], Array], bound: Bound) -> Op:
    return Op(
        name=reference.__name__,
        reference=reference,
        signature=SIGNATURE,
        axes=ELEMENTS,
        make=make,
        bound=bound,
        cost=cost,
        corners=CORNERS_OF_ELEMENTS,
        nan="element",
        largest=2.0**127,
        laws=(
            alone(SIGNATURE, make),
            alone(SIGNATURE, make, "width"),
            contained(SIGNATURE, make, "tokens", "width"),
            *LAWS[reference.__name__],
        ),
    )


OPS = (
    _row(silu, silu_bound),
    _row(gelu, gelu_bound),
    _row(gelu_erf, gelu_erf_bound),
    _row(relu, relu_bound),
    _row(squared_relu, squared_relu_bound),
    _row(softplus, softplus_bound),
    _row(sigmoid, sigmoid_bound),
)
