"""Awkward sizes: around multiples of kernels' tiles, and those of models."""

from reference.op import Shape

TOKENS = (1, 2, 3, 5, 8, 9, 16, 17, 33)
WIDTHS = (1, 2, 3, 5, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257)

# For elementwise ops; the last corner has more than 2^17 elements.
ELEMENTS = {"tokens": TOKENS, "width": WIDTHS}
CORNERS_OF_ELEMENTS: tuple[Shape, ...] = (
    {"tokens": 0, "width": 33},
    {"tokens": 65, "width": 33},
    {"tokens": 513, "width": 17},
    {"tokens": 2, "width": 11_009},
    {"tokens": 3, "width": 14_335},
    {"tokens": 10, "width": 14_336},
)
