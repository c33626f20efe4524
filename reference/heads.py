"""Transpose heads to the outer axis and back, so that each head is multiplied by its own matrix.

Multi-head latent attention (MLA, DeepSeek-V2, arXiv 2405.04434) multiplies a part of each head's
query, and each head's sum of values, by a matrix of that head: linear_experts.py, for which the
rows of each head are consecutive.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference.laws.heads import laws_of_apart, laws_of_joined
from reference.op import Arguments, Array, Case, Cost, Law, Op, Shape
from reference.sizes import TOKENS

APART = "x: f32[tokens heads width], size: i64 -> out: f32[tokens*heads size], ends: i32[heads]"
JOINED = (
    "y: f32[tokens*heads size], x: f32[tokens heads width], whole: i64"
    " -> out: f32[tokens heads whole]"
)


def split_heads(x: Array, size: int) -> tuple[Array, Array]:
    """out[h * tokens + t] = x[t, h, :size], and the end of each head's rows.

    x [tokens, heads, width], size at most width -> float64 [tokens * heads, size], int32 [heads].
    """
    tokens, heads, _ = x.shape
    out = x[:, :, :size].transpose(1, 0, 2).reshape(heads * tokens, size)
    return out.astype(np.float64), np.arange(1, heads + 1, dtype=np.int32) * np.int32(tokens)


def merge_heads(y: Array, x: Array, whole: int) -> Array:
    """out[t, h] = y[h * tokens + t], followed by the last elements of x[t, h] up to width `whole`.

    y [tokens * heads, size], x [tokens, heads, width], whole from size to size + width -> float64
    [tokens, heads, whole].
    """
    tokens, heads, width = x.shape
    size = y.shape[1]
    rows = y.reshape(heads, tokens, size).transpose(1, 0, 2)
    out = np.concatenate([rows, x[:, :, width - (whole - size) :]], axis=2)
    return np.asarray(out, np.float64)


def make_apart(case: Case) -> Arguments:
    shape = case.shape
    x = case.array(case.rng(), shape["tokens"], shape["heads"], shape["width"])
    return {"x": x, "size": shape["size"]}


def make_joined(case: Case) -> Arguments:
    rng, shape = case.rng(), case.shape
    tokens, heads = shape["tokens"], shape["heads"]
    return {
        "y": case.array(rng, tokens * heads, shape["size"]),
        "x": case.array(rng, tokens, heads, shape["width"]),
        "whole": shape["whole"],
    }


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """Zero: elements are copied."""
    return {name: np.zeros(np.shape(value)) for name, value in expected.items()}


def unfit_size(inputs: Arguments) -> str:
    size, width = inputs["size"], inputs["x"].shape[2]
    return "" if 0 <= size <= width else f"size is {size}, of heads of {width}"


def unfit_whole(inputs: Arguments) -> str:
    size, width, whole = inputs["y"].shape[1], inputs["x"].shape[2], inputs["whole"]
    return "" if size <= whole <= size + width else f"whole is {whole}, of {size} and {width}"


def fit_apart(shape: Shape, format: str | None) -> Shape:
    return {**shape, "width": max(shape["width"], shape["size"])}


def fit_joined(shape: Shape, format: str | None) -> Shape:
    size = shape["size"]
    return {**shape, "whole": min(max(size, shape["whole"]), size + shape["width"])}


def cost(shape: Shape, format: str | None) -> Cost:
    elements = shape["tokens"] * shape["heads"] * shape.get("whole", shape["size"])
    return Cost(8 * elements, 0)


SIZES = (1, 2, 15, 16, 17, 33, 64)


def _row(
    reference: Callable[..., Any],
    signature: str,
    make: Callable[[Case], Arguments],
    fit: Callable[[Shape, str | None], Shape],
    complaint: Callable[[Arguments], str],
    laws: tuple[Law, ...],
    *whole: str,
) -> Op:
    sizes = {"width": SIZES, "size": SIZES, **dict.fromkeys(whole, (2, 17, 33, 80, 100))}
    corners = (
        {"tokens": 0, "heads": 3, "width": 24, "size": 16},
        {"tokens": 1, "heads": 128, "width": 192, "size": 128},
        {"tokens": 513, "heads": 2, "width": 9, "size": 5},
        {"tokens": 3, "heads": 16, "width": 576, "size": 512},
    )
    more = dict.fromkeys(whole, 576)
    return Op(
        name=reference.__name__,
        reference=reference,
        signature=signature,
        axes={"tokens": TOKENS, "heads": (1, 2, 3, 5, 8, 16), **sizes},
        make=make,
        bound=bound,
        cost=cost,
        fit=fit,
        corners=tuple({**corner, **more} for corner in corners),
        complaint=complaint,
        nan="token",
        largest=2.0**127,
        laws=laws,
    )


OPS = (
    _row(split_heads, APART, make_apart, fit_apart, unfit_size, laws_of_apart(make_apart)),
    _row(
        merge_heads,
        JOINED,
        make_joined,
        fit_joined,
        unfit_whole,
        laws_of_joined(make_joined),
        "whole",
    ),
)
