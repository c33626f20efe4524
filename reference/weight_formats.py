"""Quantising and dequantising whole rows of weights, as ops over `reference.formats`."""

import numpy as np

from reference.embedding import whole_blocks
from reference.formats import FORMATS
from reference.op import Arguments, Array, Case, Cost, Op, Shape

AXES = {"rows": (0, 1, 2, 7), "hidden": (1, 2, 31, 33, 127, 256)}


def quantise(x: Array, format: str) -> Array:
    """x float32 [rows, hidden] -> uint8 [rows, row_bytes] in `format`."""
    return FORMATS[format].quantise(x)


def dequantise(data: Array, format: str) -> Array:
    """data uint8 [rows, row_bytes] in `format` -> float32 [rows, hidden]."""
    return FORMATS[format].dequantise(data)


def make_quantise(case: Case) -> Arguments:
    x = case.array(case.rng(), case.shape["rows"], case.shape["hidden"])
    return {"x": x, "format": case.format}


def make_dequantise(case: Case) -> Arguments:
    data = case.weight(case.rng(), case.shape["rows"], case.shape["hidden"])
    return {"data": data, "format": case.format}


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """Zero: formats are defined bit for bit."""
    return {name: np.zeros(value.shape) for name, value in expected.items()}


def cost(shape: Shape, format: str | None) -> Cost:
    elements = shape["rows"] * shape["hidden"]
    return Cost(elements * (4 + FORMATS[format or "F32"].bits / 8), elements)


OPS = (
    Op(
        name="quantise",
        reference=quantise,
        signature="x: f32[rows hidden] -> out: format[rows hidden]",
        axes=AXES,
        make=make_quantise,
        bound=bound,
        cost=cost,
        formats=tuple(name for name, kind in FORMATS.items() if kind.encode),
        fit=whole_blocks,
    ),
    Op(
        name="dequantise",
        reference=dequantise,
        signature="data: format[rows hidden] -> out: f32[rows hidden]",
        axes=AXES,
        make=make_dequantise,
        bound=bound,
        cost=cost,
        formats=tuple(FORMATS),
        fit=whole_blocks,
    ),
)
