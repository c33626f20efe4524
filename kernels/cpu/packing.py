"""Weights as the kernels stream them: 32 rows together, one row a lane (layouts: linear.py)."""

from typing import Any

import numpy as np

from kernels.cpu.linear import LANES

Array = np.ndarray[Any, np.dtype[Any]]
CACHE_LINE = 64


def aligned(size: int) -> Array:
    """Uninitialised bytes on a cache line boundary."""
    memory = np.empty(size + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + size]


def _groups(rows: Array) -> Array:
    """[out, ...] -> [groups, 32 lanes, ...], rows beyond `out` zero."""
    groups = -(-len(rows) // LANES)
    if len(rows) % LANES:
        padded = np.zeros((groups * LANES, *rows.shape[1:]), rows.dtype)
        padded[: len(rows)] = rows
        rows = padded
    return rows.reshape(groups, LANES, *rows.shape[1:])


def floats(element: type) -> Any:
    """Packer of F32 (uint32) or F16 and BF16 (uint16): [groups][hidden][32]."""

    def pack(weight: Array) -> Array:
        groups = _groups(np.ascontiguousarray(weight).view(element))
        packed = aligned(groups.nbytes)
        packed.view(element).reshape(len(groups), -1, LANES)[:] = groups.swapaxes(1, 2)
        return packed

    return pack


def blocks(block_bytes: int) -> Any:
    """Packer of Q8_0 and Q4_0: [groups][blocks] of [bytes of a block][32], then 32 scales."""

    def pack(weight: Array) -> Array:
        groups = _groups(weight.reshape(len(weight), -1, block_bytes))
        payload = groups[..., 2:].transpose(0, 2, 3, 1)
        scales = groups[..., :2].transpose(0, 2, 1, 3)
        packed = aligned(groups.nbytes)
        layout = packed.reshape(*payload.shape[:2], block_bytes, LANES)
        layout[..., :-2, :] = payload
        layout[..., -2:, :] = scales.reshape(*payload.shape[:2], 2, LANES)
        return packed

    return pack
