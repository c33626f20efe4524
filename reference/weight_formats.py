"""Quantise and dequantise whole rows of weights, as ops over `reference.formats`."""

import numpy as np

from reference.embedding import whole_blocks
from reference.formats import FORMATS
from reference.laws.common import alone
from reference.laws.weight_formats import QUANTISING, importance_is_relative
from reference.op import Arguments, Array, Case, Cost, Op, Shape

AXES = {"rows": (1, 2, 7, 9, 33), "hidden": (31, 33, 127, 129, 256)}
CORNERS = (
    {"rows": 0, "hidden": 33},
    {"rows": 1, "hidden": 1},
    {"rows": 3, "hidden": 2},
    {"rows": 65, "hidden": 33},
    {"rows": 5, "hidden": 14_336},  # more than 65,536 elements
)


def quantise(x: Array, format: str) -> Array:
    """x float32 [rows, hidden] -> uint8 [rows, row_bytes] in `format`."""
    return FORMATS[format].quantise(x)


def quantise_weighted(x: Array, importance: Array, format: str) -> Array:
    """x float32 [rows, hidden] -> uint8 [rows, row_bytes] in `format`, with scales that minimise
    the error weighted by importance float32 [hidden], not negative, of each column."""
    return FORMATS[format].quantise_weighted(x, importance)


def dequantise(data: Array, format: str) -> Array:
    """data uint8 [rows, row_bytes] in `format` -> float32 [rows, hidden]."""
    return FORMATS[format].dequantise(data)


def make_quantise(case: Case) -> Arguments:
    x = case.array(case.rng(), case.shape["rows"], case.shape["hidden"])
    return {"x": x, "format": case.format}


def make_weighted(case: Case) -> Arguments:
    """Importances of many magnitudes, some of them 0."""
    arguments, rng = make_quantise(case), case.rng()
    importance = rng.standard_normal(case.shape["hidden"]).astype(np.float32) ** 4
    importance[rng.random(len(importance)) < 0.1] = 0
    return {**arguments, "importance": importance}


def make_dequantise(case: Case) -> Arguments:
    data = case.weight(case.rng(), case.shape["rows"], case.shape["hidden"])
    return {"data": data, "format": case.format}


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """Zero: formats are defined bit for bit."""
    return {name: np.zeros(value.shape) for name, value in expected.items()}


def cost(shape: Shape, format: str | None) -> Cost:
    elements = shape["rows"] * shape["hidden"]
    return Cost(elements * (4 + FORMATS[format or "F32"].bits / 8), elements)


QUANTISE = "x: f32[rows hidden] -> out: format[rows hidden]"
WEIGHTED = "x: f32[rows hidden], importance: f32[hidden] -> out: format[rows hidden]"
DEQUANTISE = "data: format[rows hidden] -> out: f32[rows hidden]"

OPS = (
    Op(
        name="quantise",
        reference=quantise,
        signature=QUANTISE,
        axes=AXES,
        make=make_quantise,
        bound=bound,
        cost=cost,
        formats=tuple(name for name, kind in FORMATS.items() if kind.encode),
        fit=whole_blocks,
        corners=CORNERS,
        varying=("rows",),
        laws=(alone(QUANTISE, make_quantise, "rows"), *QUANTISING),
    ),
    Op(
        name="quantise_weighted",
        reference=quantise_weighted,
        signature=WEIGHTED,
        axes=AXES,
        make=make_weighted,
        bound=bound,
        cost=cost,
        formats=tuple(name for name, form in FORMATS.items() if form.encode_weighted),
        fit=whole_blocks,
        corners=CORNERS,
        varying=("rows",),
        laws=(alone(WEIGHTED, make_weighted, "rows"), importance_is_relative(make_weighted)),
    ),
    Op(
        name="dequantise",
        reference=dequantise,
        signature=DEQUANTISE,
        axes=AXES,
        make=make_dequantise,
        bound=bound,
        cost=cost,
        formats=tuple(FORMATS),
        fit=whole_blocks,
        corners=(*CORNERS, {"rows": 1000, "hidden": 33}),
        nan="element",
        varying=("rows",),
        laws=(alone(DEQUANTISE, make_dequantise, "rows"),),
        separate="rows",
    ),
)
