"""Write keys or values of new tokens into the cells of a KV cache: cache[cells[t]] = x[t]."""

from dataclasses import replace

import numpy as np

from reference.formats import FORMATS
from reference.laws.cache.kv_write import LAWS
from reference.laws.common import in_turns
from reference.op import Arguments, Array, Case, Cost, Op, Shape, out_of_range

FORMATS_OF_CACHE = ("F32", "F16", "Q8_0", "Q4_0")


def kv_write(x: Array, cells: Array, before: Array, format: str) -> Array:
    """out = before, but row cells[t] is x[t], encoded in `format` (width is whole blocks).

    x float32 [tokens, width], cells int32 [tokens] (distinct), before uint8 [capacity, row_bytes]
    -> uint8, like before.
    """
    out = before.copy()
    out[cells] = FORMATS[format].quantise(x)
    return out


def make(case: Case) -> Arguments:
    """Random cells, the first token's at the end of memory, that hold random bytes before.

    Infinities and NaN are legal in float formats; in a block format they have no scale.
    """
    rng, shape = case.rng(), case.shape
    assert case.format is not None
    layout, capacity = FORMATS[case.format], shape["capacity"]
    of_kind = case.array if layout.block == 1 else case.finite
    cells = np.append(capacity - 1, rng.permutation(capacity - 1))
    row_bytes = layout.row_bytes(shape["width"])
    return {
        "x": of_kind(rng, shape["tokens"], shape["width"]),
        "cells": cells[: shape["tokens"]].astype(np.int32),
        "before": rng.integers(0, 256, (capacity, row_bytes), np.uint8),
        "format": case.format,
    }


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """Zero: the format's rounding is defined exactly, and other cells are unchanged.

    Except for a NaN's payload, which depends on the CPU: in F16 the low byte is any, and the high
    byte that of a NaN, 0x7E within one of 0x7D to 0x7F.
    """
    zero = np.zeros_like(expected["out"], np.float64)
    if inputs["format"] == "F16":
        nan = np.isnan(inputs["x"])[..., None] * np.array([255, 1])
        zero[inputs["cells"]] = nan.reshape(-1, zero.shape[1])
    return {"out": zero}


def complaint(inputs: Arguments) -> str:
    cells = inputs["cells"]
    if len(np.unique(cells)) < len(cells):
        return "cells has a cell twice"
    return out_of_range("cells", cells, len(inputs["before"]))


def cost(shape: Shape, format: str | None) -> Cost:
    elements = shape["tokens"] * shape["width"]
    return Cost(elements * (4 + FORMATS[format or "F32"].bits / 8), 0)


def fit(shape: Shape, format: str | None) -> Shape:
    """A cell for every token, and rows of whole blocks."""
    block = FORMATS[format or "F32"].block
    width = -(-shape["width"] // block) * block
    return {**shape, "capacity": max(shape["capacity"], shape["tokens"]), "width": width}


def _in_full(case: Case) -> Arguments:
    """The arguments of a case to which a law has added tokens."""
    return make(replace(case, shape=fit(case.shape, case.format)))


SIGNATURE = (
    "x: f32[tokens width], cells: i32[tokens], before: format[capacity width]"
    " -> out: format[capacity width]"
)

OP = Op(
    name="kv_write",
    reference=kv_write,
    signature=SIGNATURE,
    axes={
        "tokens": (1, 2, 3, 7, 8, 9, 17),
        "capacity": (1, 8, 40, 257, 300),
        "width": (1, 2, 8, 15, 31, 33, 64, 65, 96, 128, 257),
    },
    make=make,
    bound=bound,
    cost=cost,
    formats=FORMATS_OF_CACHE,
    fit=fit,
    corners=(
        {"tokens": 0, "capacity": 9, "width": 32},
        {"tokens": 65, "capacity": 70, "width": 96},
        {"tokens": 513, "capacity": 520, "width": 32},
        {"tokens": 3, "capacity": 5, "width": 4544},
        {"tokens": 2, "capacity": 3, "width": 14336},
        {"tokens": 2, "capacity": 3, "width": 14335},
        {"tokens": 9, "capacity": 4100, "width": 32},
        {"tokens": 9, "capacity": 65600, "width": 1},
    ),
    complaint=complaint,
    nan="element",
    varying=("tokens", "capacity"),
    laws=(in_turns(SIGNATURE, _in_full), *LAWS),
)
