"""MiniCache's pages: 256 tokens' keys or values of a head in two blocks (arXiv 2405.14366).

Merged tokens have one row, the direction that both blocks share, and a magnitude for each block;
retained tokens have a row for each block. A head's page, uint8 [page]:

- rows of float16 [head_dim]: merged tokens, then retained tokens of the lower block, then of the
  upper block, each in token order;
- magnitudes by token, float32: of the lower block, then of the upper; 1 for retained tokens;
- one byte for each token, the index of its row; of a retained token, the lower block's.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

GROUP = 256  # tokens of a page
PLAIN = 9 * GROUP  # bytes of a head's page besides its rows
COSINE, OF_X, OF_Y, LENGTH_X, LENGTH_Y = range(5)  # rows of slerp_weights' output


def page_bytes(head_dim: int, retained: int) -> int:
    """Bytes of a head's page that retains this many tokens."""
    return 2 * head_dim * (GROUP + retained) + PLAIN


def retained_in(size: int, head_dim: int) -> int:
    """The number of tokens that a page of `size` bytes retains."""
    return (size - PLAIN) // (2 * head_dim) - GROUP


def page_size(page: int, head_dim: int) -> int:
    """The largest page size of at most `page` bytes; if page <= 256, the size that retains `page`
    tokens."""
    retained = page if page <= GROUP else retained_in(page, head_dim)
    return page_bytes(head_dim, min(GROUP, max(0, retained)))


def page_of(x: Array, y: Array, own: Array, size: int) -> Array:
    """Encode a head's page, uint8 [size], from its vectors in two blocks, float16 [256, head_dim],
    and their slerp_weights, float32 [5, 256]."""
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
    """Decode pages uint8 [pages, kv_heads, page] for the lower block, or the `upper` one: rows
    float32 [pages, kv_heads, 256, head_dim], and the magnitudes [pages, kv_heads, 256] to multiply
    them by."""
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
