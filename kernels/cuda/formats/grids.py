"""The grids of IQ1 to IQ3 as a header for CUDA kernels, made from the reference's."""

import numpy as np

from reference.formats import grids
from reference.op import Array

# Values in eighths, as a field of so many bits names them.
THREE = (-8, 0, 8), 2
TWO_BITS = grids.TWO_BITS, 2
EIGHT = (8, 24, 40, 56, 72, 88, 104, 120), 3
UNEVEN = (*EIGHT[0][:-1], 124), 3

GRIDS = {
    "IQ1": (grids.IQ1, *THREE),
    "IQ2_XXS": (grids.IQ2_XXS, *TWO_BITS),
    "IQ2_XS": (grids.IQ2_XS, *TWO_BITS),
    "IQ2_S": (grids.IQ2_S, *TWO_BITS),
    "IQ3_XXS": (grids.IQ3_XXS, *UNEVEN),
    "IQ3_S": (grids.IQ3_S, *EIGHT),
}


def packed(grid: Array, values: tuple[int, ...], bits: int) -> Array:
    """int8 [groups, size] -> uint16 [groups]: fields that number values, the lowest the first."""
    fields = np.searchsorted(values, grid).astype(np.uint16)
    shifts = bits * np.arange(grid.shape[1], dtype=np.uint16)
    return np.asarray(np.bitwise_or.reduce(fields << shifts, axis=1), np.uint16)


def header() -> str:
    """An array of uint16_t for each grid."""
    lines = ["// Made by grids.py: a number for each group, whose fields number its values."]
    for name, (grid, values, bits) in GRIDS.items():
        words = ",".join(map(str, packed(grid, values, bits)))
        lines.append(f"static __device__ const uint16_t {name}_GRID[{len(grid)}] = {{{words}}};")
    return "\n".join(["#pragma once", *lines, ""])
