"""Elementwise arithmetic between layers: residual x + y, bias, product, scale, softcap."""

from collections.abc import Callable

import numpy as np

from reference.bounds import TINY, relative
from reference.laws.arithmetic import LAWS_OF_ADD, LAWS_OF_MUL, LAWS_OF_SCALE, LAWS_OF_SOFTCAP
from reference.laws.common import alone, contained, scales
from reference.op import Arguments, Array, Bound, Case, Cost, Law, Op, Shape
from reference.sizes import CORNERS_OF_ELEMENTS, ELEMENTS


def add(x: Array, y: Array) -> Array:
    """x + y. Both [tokens, width] -> float64, same."""
    return x.astype(np.float64) + y


def add_bias(x: Array, bias: Array) -> Array:
    """x + bias. x [tokens, width], bias [width] -> float64 [tokens, width]."""
    return x.astype(np.float64) + bias


def mul(x: Array, y: Array) -> Array:
    """x * y. Both [tokens, width] -> float64, same."""
    return x.astype(np.float64) * y


def mul_columns(x: Array, factors: Array) -> Array:
    """x * factors. x [tokens, width], factors [width] -> float64 [tokens, width]."""
    return x.astype(np.float64) * factors


def scale(x: Array, factor: float) -> Array:
    """factor * x, with the factor rounded to float32. x [tokens, width] -> float64, same."""
    return x.astype(np.float64) * np.float32(factor)


def softcap(x: Array, cap: float) -> Array:
    """cap * tanh(x / cap), with the cap > 0 rounded to float32 (Gemma 2, arXiv 2408.00118).

    x [tokens, width] -> float64, same.
    """
    return np.asarray(np.float32(cap) * np.tanh(x.astype(np.float64) / np.float32(cap)))


def make_add(case: Case) -> Arguments:
    rng, dims = case.rng(), (case.shape["tokens"], case.shape["width"])
    return {"x": case.array(rng, *dims), "y": case.array(rng, *dims)}


def make_add_bias(case: Case) -> Arguments:
    rng, width = case.rng(), case.shape["width"]
    return {"x": case.array(rng, case.shape["tokens"], width), "bias": case.array(rng, width)}


def make_mul_columns(case: Case) -> Arguments:
    given = make_add_bias(case)
    return {"x": given["x"], "factors": given["bias"]}


def make_scale(case: Case) -> Arguments:
    """The factor is an extreme or a random number, another one for each seed."""
    rng, dims = case.rng(), (case.shape["tokens"], case.shape["width"])
    found = (rng.standard_normal(), 0.1, 0.0, 1.0, -1e30, 1e-30, 2.0**-126)
    return {"x": case.array(rng, *dims), "factor": float(found[case.seed % len(found)])}


def make_softcap(case: Case) -> Arguments:
    """The cap is Gemma 2's, random, or too high to have an effect, another one for each seed."""
    rng, dims = case.rng(), (case.shape["tokens"], case.shape["width"])
    found = (30.0, rng.uniform(0.1, 10), 50.0, 2.0**20)
    return {"x": case.array(rng, *dims), "cap": float(found[case.seed % len(found)])}


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    return {"out": relative(expected["out"], 1)}


def bound_of_softcap(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """The quotient rounds once, which tanh does not amplify; tanh has at most eight roundings, and
    the product one."""
    return {"out": relative(expected["out"], 10) + TINY * inputs["cap"]}


def binary_cost(shape: Shape, format: str | None) -> Cost:
    elements = shape["tokens"] * shape["width"]
    return Cost(12 * elements, elements)


def unary_cost(shape: Shape, format: str | None) -> Cost:
    elements = shape["tokens"] * shape["width"]
    return Cost(8 * elements, elements)


def _row(
    reference: Callable[..., Array],
    signature: str,
    make: Callable[[Case], Arguments],
    cost: Callable[[Shape, str | None], Cost],
    *laws: Law,
    bound: Bound = bound,
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


OPS = (
    _row(
        add,
        "x: f32[tokens width], y: f32[tokens width] -> out: f32[tokens width]",
        make_add,
        binary_cost,
        scales(make_add, ["x", "y"], [-1, 2, 0.5]),
        *LAWS_OF_ADD,
    ),
    _row(
        add_bias,
        "x: f32[tokens width], bias: f32[width] -> out: f32[tokens width]",
        make_add_bias,
        unary_cost,
        scales(make_add_bias, ["x", "bias"], [-1, 2, 0.5]),
    ),
    _row(
        mul,
        "x: f32[tokens width], y: f32[tokens width] -> out: f32[tokens width]",
        make_add,
        binary_cost,
        scales(make_add, ["x"], [-1, 0, 2, 0.5]),
        *LAWS_OF_MUL,
        largest=2.0**63,
    ),
    _row(
        mul_columns,
        "x: f32[tokens width], factors: f32[width] -> out: f32[tokens width]",
        make_mul_columns,
        unary_cost,
        scales(make_mul_columns, ["x"], [-1, 0, 2, 0.5]),
        scales(make_mul_columns, ["factors"], [-1, 0, 2, 0.5]),
        largest=2.0**63,
    ),
    _row(
        scale,
        "x: f32[tokens width], factor: f64 -> out: f32[tokens width]",
        make_scale,
        unary_cost,
        *LAWS_OF_SCALE,
    ),
    _row(
        softcap,
        "x: f32[tokens width], cap: f64 -> out: f32[tokens width]",
        make_softcap,
        unary_cost,
        *LAWS_OF_SOFTCAP,
        bound=bound_of_softcap,
    ),
)
