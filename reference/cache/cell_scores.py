"""Scores of KV cache cells for eviction, by key alone: KNorm -|k|, KeyDiff -cos(k, mean k / |k|),
and SnapKV's smoothing over neighbours. Cells of high scores are kept (policies.py)."""

import numpy as np

from reference.attention.attention import HELD
from reference.bounds import TINY, U64, U, gamma
from reference.cache.kv_write import FORMATS_OF_CACHE
from reference.formats import FORMATS
from reference.laws.cache.cell_scores import KEYS_LAWS, POOL_LAWS
from reference.laws.common import alone
from reference.op import Arguments, Array, Case, Cost, Op, Shape, out_of_range

KEYS = (
    "k: format[capacity head_dim*kv_heads], cells: i32[held], kv_heads: i64"
    " -> out: f32[kv_heads held]"
)
POOLED = "scores: f32[kv_heads held], size: i64, last: i64 -> out: f32[kv_heads held]"
SIZES = (1, 3, 5, 7, 31)


def knorm(k: Array, cells: Array, kv_heads: int, format: str) -> Array:
    """out[g, j] = -|k_j|, k_j the key of cell cells[j] for head g: keys of a small norm receive the
    most attention (Devoto et al., arXiv 2406.11430).

    k uint8 [capacity, row_bytes], rows of kv_heads * head_dim elements in `format`; cells int32
    [held] -> float64 [kv_heads, held].
    """
    return np.asarray(-np.linalg.norm(_keys(k, cells, kv_heads, format), axis=2))


def keydiff(k: Array, cells: Array, kv_heads: int, format: str) -> Array:
    """out[g, j] = -cos(k_j, mean of k_i / |k_i|): keys that differ from the others are kept (Park
    et al., KeyDiff, arXiv 2504.15364). A zero key has a cosine of 0.

    Arguments are those of knorm -> float64 [kv_heads, held].
    """
    units = _directions(_keys(k, cells, kv_heads, format))
    anchors = _directions(units.sum(axis=1, keepdims=True) / max(1, len(cells)))
    return np.asarray(-(units * anchors).sum(axis=2))


def pool_scores(scores: Array, size: int, last: int) -> Array:
    """out[g, j] = the mean of the `size` (odd) scores centred at j, over the first held - last
    scores, with zeros beyond both ends: SnapKV's average pooling. The `last` scores, of the
    observation window that SnapKV always keeps, are copied.

    scores float32 [kv_heads, held] -> float64 [kv_heads, held].
    """
    out = scores.astype(np.float64)
    pooled = scores.shape[1] - last
    padded = np.pad(out[:, :pooled], ((0, 0), (size // 2, size // 2)))
    out[:, :pooled] = sum(padded[:, i : i + pooled] for i in range(size)) / size
    return out


def _keys(k: Array, cells: Array, kv_heads: int, format: str) -> Array:
    """float64 [kv_heads, held, head_dim]."""
    rows = FORMATS[format].dequantise(k[cells])
    heads = rows.reshape(len(cells), kv_heads, rows.shape[1] // kv_heads)
    return np.asarray(heads.transpose(1, 0, 2), np.float64)


def _directions(x: Array) -> Array:
    lengths = np.linalg.norm(x, axis=-1, keepdims=True)
    return np.asarray(np.divide(x, lengths, out=np.zeros_like(x), where=lengths > 0))


def make_keys(case: Case) -> Arguments:
    """Random distinct cells; cells that are not listed hold NaN. Some keys are zeros."""
    rng, shape = case.rng(), case.shape
    assert case.format is not None
    layout, capacity, kv_heads = FORMATS[case.format], shape["capacity"], shape["kv_heads"]
    held = HELD[case.format]
    rows = case.finite(rng, capacity, kv_heads * shape["head_dim"]).clip(-held, held)
    rows = rows.reshape(capacity, kv_heads, -1) * (rng.random((capacity, kv_heads, 1)) < 0.95)
    k = layout.quantise(rows.reshape(capacity, -1).astype(np.float32))
    cells = rng.permutation(capacity)[: shape["held"]].astype(np.int32)
    k[np.setdiff1d(np.arange(capacity), cells)] = 0xFF
    return {"k": k, "cells": cells, "kv_heads": kv_heads, "format": case.format}


def make_scores(case: Case) -> Arguments:
    rng, shape = case.rng(), case.shape
    return {
        "scores": case.array(rng, shape["kv_heads"], shape["held"]),
        "size": SIZES[case.seed % len(SIZES)],
        "last": int(rng.integers(0, shape["held"] + 1)),
    }


def bound_knorm(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """Squares and sums are float64, with a negligible error; the result is rounded to float32."""
    return {"out": np.abs(expected["out"]) * (U + 1e-12) + TINY}


def bound_keydiff(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """Only the result is float32. Each element of the mean is a sum of `held` terms with a total
    relative error g = gamma(held + head_dim + 4); so the mean direction has an error of at most 2 g
    / |mean|, where |mean| <= 1 shrinks as directions cancel, and a cosine has the same."""
    keys = _keys(inputs["k"], inputs["cells"], inputs["kv_heads"], inputs["format"])
    means = _directions(keys).mean(axis=1) if keys.shape[1] else np.ones((len(keys), 1))
    lengths = np.linalg.norm(means, axis=1)[:, None]
    off = gamma(keys.shape[1] + keys.shape[2] + 4, U64)
    cancelled = np.minimum(2.0, 4 * off / np.maximum(lengths, TINY))
    return {"out": U * np.abs(expected["out"]) + 2 * off + cancelled + TINY}


def bound_pooled(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """A sum of `size` float32 and a division; the last scores are exact."""
    size, last = inputs["size"], inputs["last"]
    sizes = pool_scores(np.abs(inputs["scores"]), size, last)
    off = gamma(size + 1) * sizes + TINY
    off[:, off.shape[1] - last :] = 0
    return {"out": off}


def unfit_cells(inputs: Arguments) -> str:
    return out_of_range("cells", inputs["cells"], len(inputs["k"]))


def unfit_pool(inputs: Arguments) -> str:
    size, last, held = inputs["size"], inputs["last"], inputs["scores"].shape[1]
    if size < 1 or size % 2 == 0:
        return f"size is {size}: want an odd number"
    return "" if 0 <= last <= held else f"last is {last}, of {held} scores"


def fit_keys(shape: Shape, format: str | None) -> Shape:
    """There is a cell; heads are whole blocks; `held` is at most the capacity."""
    block = FORMATS[format or "F32"].block
    head_dim = -(-max(1, shape["head_dim"]) // block) * block
    capacity = max(1, shape["capacity"])
    held = min(shape["held"], capacity)
    return {
        **shape, "capacity": capacity, "held": held, "head_dim": head_dim,
        "kv_heads": max(1, shape["kv_heads"]),
    }  # fmt: skip


def cost_keys(shape: Shape, format: str | None) -> Cost:
    elements = shape["held"] * shape["kv_heads"] * shape["head_dim"]
    scores = 4 * shape["held"] * shape["kv_heads"]
    return Cost(elements * FORMATS[format or "F32"].bits / 8 + scores, 2 * elements)


def cost_pooled(shape: Shape, format: str | None) -> Cost:
    elements = shape["kv_heads"] * shape["held"]
    return Cost(8 * elements, 5 * elements)


def _of_keys(name: str) -> Op:
    corners = [
        {"capacity": 40, "held": 0, "kv_heads": 2, "head_dim": 32},
        {"capacity": 300, "held": 300, "kv_heads": 4, "head_dim": 128},
        {"capacity": 9, "held": 9, "kv_heads": 32, "head_dim": 128},
        {"capacity": 4100, "held": 4097, "kv_heads": 1, "head_dim": 32},
        {"capacity": 65600, "held": 65599, "kv_heads": 1, "head_dim": 1},
    ]
    return Op(
        name=name,
        reference={"knorm": knorm, "keydiff": keydiff}[name],
        signature=KEYS,
        axes={
            "capacity": (1, 2, 9, 33, 65, 129),
            "held": (1, 2, 3, 8, 31, 65),
            "kv_heads": (1, 2, 3, 4, 5, 8),
            "head_dim": (1, 2, 6, 16, 31, 33, 64, 96, 128, 256),
        },
        make=make_keys,
        bound={"knorm": bound_knorm, "keydiff": bound_keydiff}[name],
        cost=cost_keys,
        formats=FORMATS_OF_CACHE,
        fit=fit_keys,
        corners=corners,
        complaint=unfit_cells,
        varying=("capacity", "held"),
        laws=KEYS_LAWS[name],
    )


OPS = (
    _of_keys("knorm"),
    _of_keys("keydiff"),
    Op(
        name="pool_scores",
        reference=pool_scores,
        signature=POOLED,
        axes={"kv_heads": (1, 2, 3, 4, 5, 8), "held": (1, 2, 5, 31, 33, 65, 129)},
        make=make_scores,
        bound=bound_pooled,
        cost=cost_pooled,
        corners=(
            {"kv_heads": 2, "held": 0},
            {"kv_heads": 71, "held": 40},
            {"kv_heads": 1, "held": 65600},
        ),
        complaint=unfit_pool,
        varying=("held",),
        laws=(alone(POOLED, make_scores, "kv_heads"), *POOL_LAWS),
    ),
)
