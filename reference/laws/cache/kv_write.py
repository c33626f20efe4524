"""Laws of writing into a KV cache, in addition to those derived from its signature (common.py)."""

import numpy as np

from reference.formats import FORMATS
from reference.laws.common import other_bits
from reference.op import Apply, Arguments, Array, Case, Law

TOKENS, CELLS = 7, 40
STEPS = {"Q8_0": 0.5 / 127, "Q4_0": 1 / 8}  # largest errors relative to a block's maximum


def scene(case: Case) -> Arguments:
    """Tokens of the case's width, with outliers a thousand times larger, for cells of random
    bytes."""
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
    """Cells that are not written keep every bit, whatever bytes they hold."""
    inputs = scene(case)
    others = np.setdiff1d(np.arange(CELLS), inputs["cells"])
    return other_bits({"out": apply(inputs)["out"][others]}, {"out": inputs["before"][others]})


def what_was_written_is_read(apply: Apply, case: Case) -> str:
    """A cell decodes to its token rounded to the format, infinities and NaN included."""
    inputs = scene(case)
    beyond = np.array([np.inf, -np.inf, np.nan, -0.0, 65519, 65520, -1e6, 2.0**-25], np.float32)
    inputs["x"].flat[: beyond.size] = beyond[: inputs["x"].size]
    kind = {"F32": np.float32, "F16": np.float16}[inputs["format"]]
    with np.errstate(over="ignore"):
        want = inputs["x"].astype(kind).astype(np.float32)
    return other_bits({"read": _read(apply, inputs)}, {"read": want})


def what_was_written_is_read_to_a_step(apply: Apply, case: Case) -> str:
    """In block formats an element decodes to within a fraction of the block's maximum."""
    inputs = scene(case)
    blocks = inputs["x"].reshape(-1, 32)
    off = np.abs(_read(apply, inputs).reshape(-1, 32) - blocks)
    step = STEPS[inputs["format"]] + 2.0**-11  # float16 rounding of the scale
    if (off > 1.001 * step * np.abs(blocks).max(axis=1, keepdims=True)).any():
        return "an element is more than a step from what was written"
    return ""


def the_order_of_tokens_does_not_matter(apply: Apply, case: Case) -> str:
    """Permuting the tokens with their cells gives the same cache."""
    inputs = scene(case)
    backwards = {name: np.ascontiguousarray(inputs[name][::-1]) for name in ("x", "cells")}
    return other_bits(apply({**inputs, **backwards}), apply(inputs))


def what_was_there_does_not_matter(apply: Apply, case: Case) -> str:
    """A written cell does not depend on its previous bytes, even if these are the same already."""
    inputs = scene(case)
    once, cells = apply(inputs)["out"], inputs["cells"]
    for before in (once, ~inputs["before"]):
        again = apply({**inputs, "before": before})["out"]
        if found := other_bits({"out": again[cells]}, {"out": once[cells]}):
            return found
    return ""


def _read(apply: Apply, inputs: Arguments) -> Array:
    """The decoded rows of the tokens' cells."""
    return FORMATS[inputs["format"]].dequantise(apply(inputs)["out"][inputs["cells"]])


LAWS = (
    Law("other-cells-keep-every-bit", other_cells_keep_every_bit),
    Law("written-is-read", what_was_written_is_read, ("F32", "F16")),
    Law("written-is-read-to-a-step", what_was_written_is_read_to_a_step, ("Q8_0", "Q4_0")),
    Law("tokens-in-any-order", the_order_of_tokens_does_not_matter),
    Law("whatever-was-there", what_was_there_does_not_matter),
)
