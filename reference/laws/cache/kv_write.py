"""Laws of writing into a KV cache, beside what follows from its signature (common.py)."""

import numpy as np

from reference.formats import FORMATS
from reference.laws.common import other_bits
from reference.op import Apply, Arguments, Array, Case, Law

TOKENS, CELLS = 7, 40
STEPS = {"Q8_0": 0.5 / 127, "Q4_0": 1 / 8}  # parts of a block's largest by which elements are off


def scene(case: Case) -> Arguments:
    """Tokens of the case's width, some elements a thousand times the others, for cells that hold
    any bytes."""
    rng = case.rng()
    assert case.format is not None
    x = rng.standard_normal((TOKENS, case.shape["width"]), dtype=np.float32)
    row_bytes = FORMATS[case.format].row_bytes(case.shape["width"])
    return {
        "x": np.where(rng.random(x.shape) < 0.03, np.float32(1000) * x, x),
        "cells": rng.permutation(CELLS)[:TOKENS].astype(np.int32),
        "before": rng.integers(0, 256, (CELLS, row_bytes), np.uint8),
        "format": case.format,
    }


def other_cells_keep_every_bit(apply: Apply, case: Case) -> str:
    """Cells that no token is for stay as they are, whatever bytes they hold."""
    inputs = scene(case)
    others = np.setdiff1d(np.arange(CELLS), inputs["cells"])
    return other_bits({"out": apply(inputs)["out"][others]}, {"out": inputs["before"][others]})


def what_was_written_is_read(apply: Apply, case: Case) -> str:
    """A cell holds its token as a float of its format, infinities and NaN too."""
    inputs = scene(case)
    beyond = np.array([np.inf, -np.inf, np.nan, -0.0, 65519, 65520, -1e6, 2.0**-25], np.float32)
    inputs["x"].flat[: beyond.size] = beyond[: inputs["x"].size]
    kind = {"F32": np.float32, "F16": np.float16}[inputs["format"]]
    with np.errstate(over="ignore"):
        want = inputs["x"].astype(kind).astype(np.float32)
    return other_bits({"read": _read(apply, inputs)}, {"read": want})


def what_was_written_is_read_to_a_step(apply: Apply, case: Case) -> str:
    """An element of a block is read to a part of its largest, which sets the step."""
    inputs = scene(case)
    blocks = inputs["x"].reshape(-1, 32)
    off = np.abs(_read(apply, inputs).reshape(-1, 32) - blocks)
    step = STEPS[inputs["format"]] + 2.0**-11  # of float16, the scale's
    if (off > 1.001 * step * np.abs(blocks).max(axis=1, keepdims=True)).any():
        return "an element is read further from what was written than a step"
    return ""


def the_order_of_tokens_does_not_matter(apply: Apply, case: Case) -> str:
    """Tokens in another order, each with its cell, make the same cache."""
    inputs = scene(case)
    backwards = {name: np.ascontiguousarray(inputs[name][::-1]) for name in ("x", "cells")}
    return other_bits(apply({**inputs, **backwards}), apply(inputs))


def what_was_there_does_not_matter(apply: Apply, case: Case) -> str:
    """A cell is written alike, whatever it held; so is one that holds the same already."""
    inputs = scene(case)
    once, cells = apply(inputs)["out"], inputs["cells"]
    for before in (once, ~inputs["before"]):
        again = apply({**inputs, "before": before})["out"]
        if found := other_bits({"out": again[cells]}, {"out": once[cells]}):
            return found
    return ""


def _read(apply: Apply, inputs: Arguments) -> Array:
    """What the tokens' cells hold."""
    return FORMATS[inputs["format"]].dequantise(apply(inputs)["out"][inputs["cells"]])


LAWS = (
    Law("other-cells-keep-every-bit", other_cells_keep_every_bit),
    Law("written-is-read", what_was_written_is_read, ("F32", "F16")),
    Law("written-is-read-to-a-step", what_was_written_is_read_to_a_step, ("Q8_0", "Q4_0")),
    Law("tokens-in-any-order", the_order_of_tokens_does_not_matter),
    Law("whatever-was-there", what_was_there_does_not_matter),
)
