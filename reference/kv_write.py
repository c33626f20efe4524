"""Write keys or values of new tokens into the cells of a KV cache."""

import numpy as np

from reference.formats import FORMATS
from reference.op import Arguments, Array, Case, Cost, Op, Shape, out_of_range

FORMATS_OF_CACHE = ("F32", "F16", "Q8_0", "Q4_0")


def kv_write(x: Array, cells: Array, before: Array, format: str) -> Array:
    """out = before, but row cells[t] holds x[t], encoded in `format` (width is whole blocks).

    x float32 [tokens, width], cells int32 [tokens] (distinct), before uint8 [capacity, row_bytes]
    -> uint8, like before.
    """
    out = before.copy()
    out[cells] = FORMATS[format].quantise(x)
    return out


def make(case: Case) -> Arguments:
    rng, shape = case.rng(), case.shape
    assert case.format is not None
    before = FORMATS[case.format].quantise(case.array(rng, shape["capacity"], shape["width"]))
    return {
        "x": case.array(rng, shape["tokens"], shape["width"]),
        "cells": rng.permutation(shape["capacity"])[: shape["tokens"]].astype(np.int32),
        "before": before,
        "format": case.format,
    }


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """Zero: the format's rounding is defined bit for bit, and other cells are untouched."""
    return {"out": np.zeros(expected["out"].shape)}


def complaint(inputs: Arguments) -> str:
    cells = inputs["cells"]
    if len(np.unique(cells)) < len(cells):
        return "cells names a cell twice"
    return out_of_range("cells", cells, len(inputs["before"]))


def cost(shape: Shape, format: str | None) -> Cost:
    elements = shape["tokens"] * shape["width"]
    return Cost(elements * (4 + FORMATS[format or "F32"].bits / 8), 0)


def fit(shape: Shape, format: str | None) -> Shape:
    """A cell for every token, and rows of whole blocks."""
    block = FORMATS[format or "F32"].block
    width = -(-shape["width"] // block) * block
    return {**shape, "capacity": max(shape["capacity"], shape["tokens"]), "width": width}


OP = Op(
    name="kv_write",
    reference=kv_write,
    signature=(
        "x: f32[tokens width], cells: i32[tokens], before: format[capacity width]"
        " -> out: format[capacity width]"
    ),
    axes={"tokens": (0, 1, 2, 7), "capacity": (1, 8, 40), "width": (1, 2, 31, 33, 128)},
    make=make,
    bound=bound,
    cost=cost,
    formats=FORMATS_OF_CACHE,
    fit=fit,
    complaint=complaint,
)
