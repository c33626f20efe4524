"""Planted bugs of kv_write."""

import numpy as np

from conformance.bugs.bug import changed, in_python
from reference.cache.kv_write import kv_write
from reference.op import Array


def rounded_toward_zero(x: Array, cells: Array, before: Array, format: str) -> Array:
    half = x.astype(np.float16)
    beyond = np.abs(half.astype(np.float32)) > np.abs(x)
    out = before.copy()
    out[cells] = np.where(beyond, np.nextafter(half, np.float16(0)), half).view(np.uint8)
    return out


def steps_rounded_down(x: Array, cells: Array, before: Array, format: str) -> Array:
    """Q8_0 whose steps are floor(x / d): the scale is right, half of the values are one off."""
    out = kv_write(x, cells, before, format)
    blocks = out[cells].reshape(-1, 34)
    largest = np.abs(x.reshape(-1, 32)).max(axis=1, keepdims=True, initial=0)
    steps = np.floor(x.reshape(-1, 32) * (127 / np.maximum(largest, 1e-30)))
    blocks[:, 2:] = steps.astype(np.int8).view(np.uint8)
    out[cells] = blocks.reshape(len(cells), -1)
    return out


def but_the_last(rows: Array) -> Array:
    return rows[:-1]


BUGS = (
    *in_python(
        "kv_write",
        into_the_next_cell=lambda x, cells, before, format: kv_write(
            x, (cells + 1) % max(1, len(before)), before, format
        ),
        formats=("F16", "Q4_0"),
    ),
    *in_python(
        "kv_write",
        into_cells_in_order=changed(kv_write, cells=lambda cells: np.arange(len(cells))),
        last_token_lost=changed(kv_write, x=but_the_last, cells=but_the_last),
        formats=("F32",),
    ),
    *in_python("kv_write", rounded_toward_zero, formats=("F16",)),
    *in_python("kv_write", steps_rounded_down, formats=("Q8_0",)),
)
