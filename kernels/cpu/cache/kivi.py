"""kivi_keys and kivi_values on the CPU: KV heads and groups are split among threads.

A page is written only once for 32 tokens of a text, so scalar loops suffice.
"""

from collections.abc import Callable

import numpy as np
from numba import njit

from kernels.cpu.formats.decoding import TAGS, element
from kernels.cpu.isa.bits import put_half
from kernels.cpu.runtime.share import Share, arguments
from kernels.shapes import in_place
from reference.cache.kivi import SIGNATURE
from reference.formats.kivi import GROUP, LARGEST_CODE, PAGE_BYTES

IN_PLACE = in_place(SIGNATURE)
F16 = TAGS["F16"]


@njit(inline="always")
def step_above(third):
    """The smallest step that is not below, as its byte: -> (byte, its value). A byte is the upper
    bits of a float16, whose least normal number is 2^-14; below it steps are multiples of 2^-17."""
    if third < np.float32(2.0**-14):
        byte = np.int64(np.ceil(third * np.float32(2.0**17)))
        return byte, np.float32(byte if byte > 0 else 1) * np.float32(2.0**-17)
    bits = (np.float32(third).view(np.int32) + 0xFFFFF) >> 20
    return np.int64(bits - 896), np.int32(bits << 20).view(np.float32)


@njit(inline="always")
def pack_group(out, part, head_dim, x, cells, first, column, d, token, by_channel):
    """Write codes, zero point and step of a group to the page of a head at out[part:]: of channel d
    over the tokens, or of a token over the channels from d."""
    low, high = np.float32(np.inf), np.float32(-np.inf)
    for i in range(GROUP):
        cell, at = (cells[first + i], d) if by_channel else (cells[first + token], d + i)
        number = element(F16, x[cell], column + at)
        low, high = min(low, number), max(high, number)
    low += np.float32(0)
    byte, size = step_above((high - low) / np.float32(LARGEST_CODE))
    place = d if by_channel else d + token
    put_half(out, part + 8 * head_dim + 2 * place, low)
    out[part + 10 * head_dim + place] = byte
    for i in range(GROUP):
        t, c = (i, d) if by_channel else (token, d + i)
        above = element(F16, x[cells[first + t]], column + c) - low
        code = np.int64(np.rint(above / size))
        lane, field = (t % 16, c % 16) if by_channel else (c % 16, t % 16)
        word = part + 4 * ((c // 16 * 2 + t // 16) * 16 + lane)
        out[word + field // 4] |= code << (2 * (field % 4))


@njit(inline="always")
def pack(x, lists, spans, into, pages, thread, n_threads, by_channel):
    out, (_, kv_heads, head_dim, _) = pages.reshape(-1), pages.shape
    item = 0
    for t in range(len(into)):
        for g in range(kv_heads if into[t] >= 0 else 0):
            item += 1
            if item % n_threads != thread:
                continue
            cells, first = lists[spans[t, 0]], spans[t, 1] - GROUP
            part = (into[t] * kv_heads + g) * head_dim * PAGE_BYTES
            for byte in range(8 * head_dim):
                out[part + byte] = 0
            for d in range(0, head_dim, 1 if by_channel else GROUP):
                for token in range(1 if by_channel else GROUP):
                    column = g * head_dim
                    pack_group(
                        out, part, head_dim, x, cells, first, column, d, token, by_channel
                    )  # fmt: skip


def packing(by_channel: bool) -> Callable[..., None]:
    def generic(args, thread, n_threads):
        x, lists, spans, into, out = arguments(args, IN_PLACE)
        pack(x, lists, spans, into, out, thread, n_threads, by_channel)

    return generic


KEYS = {"F16": Share(lambda: packing(True), IN_PLACE, "keys")}
VALUES = {"F16": Share(lambda: packing(False), IN_PLACE, "values")}
