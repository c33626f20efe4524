"""Evict cells of a KV cache: keep those of the top scores for each head, and compact the cache."""

import numpy as np

from reference.cache.kv_write import FORMATS_OF_CACHE
from reference.formats import FORMATS
from reference.laws.cache.keep_cells import MOVE_LAWS, TOP_LAWS
from reference.laws.common import alone
from reference.op import Arguments, Array, Case, Cost, Op, Shape, out_of_range

TOP = "scores: f32[kv_heads held], kept: i64, first: i64, last: i64 -> out: i32[kv_heads kept]"
MOVED = (
    "slots: i32[kv_heads kept], cells: i32[held], into: i32[kept],"
    " before: format[capacity head_dim*kv_heads] -> out: format[capacity head_dim*kv_heads]"
)


def keep_top(scores: Array, kept: int, first: int, last: int) -> Array:
    """out[g]: the slots that head g keeps, ascending: the `first` and the `last` of those held, and
    the top scores among the others; of equal scores the earlier slots are kept.

    scores float32 [kv_heads, held], first + last <= kept <= held -> int32 [kv_heads, kept].
    """
    held = scores.shape[1]
    between = scores[:, first : held - last]
    best = np.argsort(-between, axis=1, kind="stable")[:, : kept - first - last] + first
    ends = np.append(np.arange(first), np.arange(held - last, held))
    ends = np.broadcast_to(ends, (len(scores), len(ends)))
    return np.asarray(np.sort(np.hstack([best, ends]), axis=1), np.int32)


def kv_keep(slots: Array, cells: Array, into: Array, before: Array, format: str) -> Array:
    """out = before, but cell into[j] gets head g's part of the row of cell cells[slots[g, j]].

    slots int32 [kv_heads, kept], ascending in [0, held); cells int32 [held] and into int32 [kept]
    are distinct, and into is either the end of cells or disjoint from them; before uint8 [capacity,
    row_bytes], a head's part of a row being whole blocks of `format` -> uint8, like before.
    """
    heads = before.reshape(len(before), len(slots), -1)
    out = heads.copy()
    for head, own in enumerate(slots):
        out[into, head] = heads[cells[own], head]
    return out.reshape(before.shape)


def make_top(case: Case) -> Arguments:
    """In some cases most scores are ties."""
    rng, shape = case.rng(), case.shape
    held, kept = shape["held"], shape["kept"]
    first = int(rng.integers(0, kept + 1)) if case.seed % 3 else 0
    last = int(rng.integers(0, kept - first + 1)) if case.seed % 4 else 0
    scores = case.array(rng, shape["kv_heads"], held)
    if case.seed % 2 and held:
        scores = np.take(scores, rng.integers(0, held, held), axis=1)
    return {"scores": scores, "kept": kept, "first": first, "last": last}


def make_moved(case: Case) -> Arguments:
    """Into the last of the held cells, or into free cells; random bytes."""
    rng, shape = case.rng(), case.shape
    assert case.format is not None
    capacity, held, kept = shape["capacity"], shape["held"], shape["kept"]
    order = rng.permutation(capacity).astype(np.int32)
    cells, others = order[:held], order[held:]
    apart = case.seed % 2 and len(others) >= kept
    into = others[:kept] if apart else cells[held - kept :]
    heads = range(shape["kv_heads"])
    slots = [np.sort(rng.choice(held, kept, replace=False)) for _ in heads]
    row_bytes = FORMATS[case.format].row_bytes(shape["head_dim"]) * len(heads)
    return {
        "slots": np.array(slots, np.int32).reshape(len(heads), kept),
        "cells": cells,
        "into": into,
        "before": rng.integers(0, 256, (capacity, row_bytes), np.uint8),
        "format": case.format,
    }


def exact(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """Zero: slots are integers, and rows are copied."""
    return {"out": np.zeros(expected["out"].shape)}


def unfit_top(inputs: Arguments) -> str:
    held, kept = inputs["scores"].shape[1], inputs["kept"]
    first, last = inputs["first"], inputs["last"]
    if min(first, last) < 0 or first + last > kept:
        return f"first is {first} and last {last}, of {kept} kept"
    return "" if kept <= held else f"kept is {kept}, of {held} held"


def unfit_moved(inputs: Arguments) -> str:
    slots, cells, into = inputs["slots"], inputs["cells"], inputs["into"]
    if (np.diff(slots, axis=1) <= 0).any():
        return "slots are not ascending"
    if len(into) > len(cells):
        return f"into has {len(into)} cells, of {len(cells)} held"
    strange = (into != cells[len(cells) - len(into) :]) & np.isin(into, cells)
    if strange.any():
        return f"into[{int(strange.argmax())}] is a cell that another slot holds"
    for name in ("cells", "into"):
        if len(np.unique(inputs[name])) < len(inputs[name]):
            return f"{name} has a cell twice"
    capacity = len(inputs["before"])
    return (
        out_of_range("slots", slots, len(cells))
        or out_of_range("cells", cells, capacity)
        or out_of_range("into", into, capacity)
    )


def fit_top(shape: Shape, format: str | None) -> Shape:
    return {**shape, "kept": min(shape["kept"], shape["held"])}


def fit_moved(shape: Shape, format: str | None) -> Shape:
    """There is a head; heads are whole blocks; kept <= held <= capacity."""
    block = FORMATS[format or "F32"].block
    capacity = max(1, shape["capacity"])
    held = min(shape["held"], capacity)
    return {
        **shape, "capacity": capacity, "held": held, "kept": min(shape["kept"], held),
        "kv_heads": max(1, shape["kv_heads"]),
        "head_dim": -(-max(1, shape["head_dim"]) // block) * block,
    }  # fmt: skip


def cost_top(shape: Shape, format: str | None) -> Cost:
    scores = shape["kv_heads"] * shape["held"]
    return Cost(4 * (scores + shape["kv_heads"] * shape["kept"]), 5 * scores)


def cost_moved(shape: Shape, format: str | None) -> Cost:
    elements = shape["kv_heads"] * shape["kept"] * shape["head_dim"]
    return Cost(2 * elements * FORMATS[format or "F32"].bits / 8, 0)


OPS = (
    Op(
        name="keep_top",
        reference=keep_top,
        signature=TOP,
        axes={
            "kv_heads": (1, 2, 3, 4, 5, 8),
            "held": (1, 2, 7, 31, 33, 65, 129),
            "kept": (1, 2, 3, 8, 31, 64),
        },
        make=make_top,
        bound=exact,
        cost=cost_top,
        fit=fit_top,
        corners=(
            {"kv_heads": 2, "held": 0, "kept": 0},
            {"kv_heads": 71, "held": 40, "kept": 20},
            {"kv_heads": 2, "held": 4100, "kept": 2050},
            {"kv_heads": 1, "held": 65600, "kept": 1024},
        ),
        complaint=unfit_top,
        varying=("held", "kept"),
        laws=(alone(TOP, make_top, "kv_heads"), *TOP_LAWS),
    ),
    Op(
        name="kv_keep",
        reference=kv_keep,
        signature=MOVED,
        axes={
            "capacity": (1, 2, 9, 33, 65, 257),
            "held": (1, 2, 3, 8, 31, 64),
            "kept": (1, 2, 5, 17, 33),
            "kv_heads": (1, 2, 3, 4, 5, 8),
            "head_dim": (1, 2, 6, 16, 32, 64, 96, 128, 256),
        },
        make=make_moved,
        bound=exact,
        cost=cost_moved,
        formats=FORMATS_OF_CACHE,
        fit=fit_moved,
        corners=(
            {"capacity": 9, "held": 5, "kept": 0, "kv_heads": 2, "head_dim": 32},
            {"capacity": 70, "held": 70, "kept": 70, "kv_heads": 32, "head_dim": 128},
            {"capacity": 4100, "held": 4097, "kept": 2048, "kv_heads": 2, "head_dim": 32},
            {"capacity": 65600, "held": 65599, "kept": 1024, "kv_heads": 1, "head_dim": 1},
        ),
        complaint=unfit_moved,
        varying=("capacity", "held", "kept"),
        laws=MOVE_LAWS,
    ),
)
