"""MiniCache's pages: 256 tokens' keys or values of a head in two blocks (arXiv 2405.14366).

Merged tokens have one row for both blocks, the direction that they share, and a length in each;
retained ones have a row of each block. A head's page, uint8 [page]:

- rows of float16 [head_dim]: first those of merged tokens, then of retained ones their lower
  block's, then their upper block's, each in the order of the text;
- lengths by token, float32: of the lower block, then of the upper; 1 for retained tokens;
- a byte for each token, the number of its row; for retained ones that is the lower block's.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

GROUP = 256  # tokens of a page
PLAIN = 9 * GROUP  # bytes of a head's page that are no rows
COSINE, OF_X, OF_Y, LENGTH_X, LENGTH_Y = range(5)  # what slerp_weights has of a token


def page_bytes(head_dim: int, retained: int) -> int:
    """Of a head's page that retains so many tokens."""
    return 2 * head_dim * (GROUP + retained) + PLAIN


def retained_in(size: int, head_dim: int) -> int:
    """How many tokens a page of so many bytes retains."""
    return (size - PLAIN) // (2 * head_dim) - GROUP


def fitting(page: int, head_dim: int) -> int:
    """The bytes of a page, of no more than these; or where they are 256 at most, of one that
    retains so many tokens."""
    retained = page if page <= GROUP else retained_in(page, head_dim)
    return page_bytes(head_dim, min(GROUP, max(0, retained)))


def page_of(x: Array, y: Array, own: Array, size: int) -> Array:
    """A head's page, uint8 [size], of its vectors in two blocks, float16 numbers [256, head_dim],
    and of what slerp_weights has of them, float32 [5, 256]."""
    x, y = x.astype(np.float32), y.astype(np.float32)
    retained = np.sort(np.argsort(own[COSINE], kind="stable")[: retained_in(size, x.shape[1])])
    merged = np.setdiff1d(np.arange(GROUP), retained)
    shared = own[OF_X, :, None] * x + own[OF_Y, :, None] * y
    rows = np.concatenate([shared[merged], x[retained], y[retained]]).astype(np.float16)
    lengths, numbers = own[LENGTH_X:].copy(), np.zeros(GROUP, np.uint8)
    lengths[:, retained] = 1
    numbers[merged], numbers[retained] = np.split(np.arange(GROUP), [len(merged)])
    return np.concatenate([part.reshape(-1).view(np.uint8) for part in (rows, lengths, numbers)])


def rows_of_pages(pages: Array, head_dim: int, upper: int) -> tuple[Array, Array]:
    """Of pages uint8 [pages, kv_heads, page] what the lower block, or the `upper`, has: rows
    float32 [pages, kv_heads, 256, head_dim], and the lengths [pages, kv_heads, 256] by which they
    are to be multiplied."""
    dims, retained = pages.shape[:2], retained_in(pages.shape[2], head_dim)
    count = GROUP + retained
    rows, lengths, numbers = np.split(
        pages, [2 * head_dim * count, 2 * head_dim * count + 8 * GROUP], axis=2
    )
    slots = numbers + retained * upper * (numbers >= GROUP - retained)
    rows = np.ascontiguousarray(rows).view("<f2").reshape(*dims, count, head_dim)
    lengths = np.ascontiguousarray(lengths).view("<f4").reshape(*dims, 2, GROUP)
    found = np.take_along_axis(rows, slots.astype(np.int64)[..., None], axis=2)
    return found.astype(np.float32), lengths[:, :, upper]
