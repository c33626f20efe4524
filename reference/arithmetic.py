"""The plain arithmetic between layers: residual add, bias and scale."""

import numpy as np

from reference.bounds import relative
from reference.op import Arguments, Array, Case, Cost, Op, Shape

AXES = {"tokens": (0, 1, 2, 7), "width": (1, 2, 31, 33, 127, 1000)}


def add(x: Array, y: Array) -> Array:
    """x + y. Both [tokens, width] -> float64, same."""
    return x.astype(np.float64) + y


def add_bias(x: Array, bias: Array) -> Array:
    """x + bias. x [tokens, width], bias [width] -> float64 [tokens, width]."""
    return x.astype(np.float64) + bias


def scale(x: Array, factor: float) -> Array:
    """factor * x, the factor rounded to float32. x [tokens, width] -> float64, same."""
    return x.astype(np.float64) * np.float32(factor)


def make_add(case: Case) -> Arguments:
    rng, dims = case.rng(), (case.shape["tokens"], case.shape["width"])
    return {"x": case.array(rng, *dims), "y": case.array(rng, *dims)}


def make_add_bias(case: Case) -> Arguments:
    rng, width = case.rng(), case.shape["width"]
    return {"x": case.array(rng, case.shape["tokens"], width), "bias": case.array(rng, width)}


def make_scale(case: Case) -> Arguments:
    rng, dims = case.rng(), (case.shape["tokens"], case.shape["width"])
    return {"x": case.array(rng, *dims), "factor": float(rng.standard_normal())}


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    return {"out": relative(expected["out"], 1)}


def binary_cost(shape: Shape, format: str | None) -> Cost:
    elements = shape["tokens"] * shape["width"]
    return Cost(12 * elements, elements)


def unary_cost(shape: Shape, format: str | None) -> Cost:
    elements = shape["tokens"] * shape["width"]
    return Cost(8 * elements, elements)


OPS = (
    Op(
        name="add",
        reference=add,
        signature="x: f32[tokens width], y: f32[tokens width] -> out: f32[tokens width]",
        axes=AXES,
        make=make_add,
        bound=bound,
        cost=binary_cost,
        nan="element",
    ),
    Op(
        name="add_bias",
        reference=add_bias,
        signature="x: f32[tokens width], bias: f32[width] -> out: f32[tokens width]",
        axes=AXES,
        make=make_add_bias,
        bound=bound,
        cost=unary_cost,
        nan="element",
    ),
    Op(
        name="scale",
        reference=scale,
        signature="x: f32[tokens width], factor: f64 -> out: f32[tokens width]",
        axes=AXES,
        make=make_scale,
        bound=bound,
        cost=unary_cost,
        nan="element",
    ),
)
