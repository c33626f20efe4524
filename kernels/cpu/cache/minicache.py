"""slerp_weights and merge_blocks on the CPU: threads take heads of pages round robin.

A page is merged once for 256 tokens of a text. Sums and angles are float64; sixteen elements of a
row are merged at a time, by products and a sum that are each rounded.
"""

import math

import numpy as np
from numba import njit

from kernels.cpu.formats.cache_rows import sixteen
from kernels.cpu.formats.decoding import TAGS, element
from kernels.cpu.isa.simd import add, convert, f16x16, f32x16, mul, splat, store
from kernels.cpu.runtime.share import Share, arguments
from kernels.shapes import in_place
from reference.cache.minicache import LEAST_COSINE, MERGING, WEIGHTS
from reference.formats.minicache import (
    COSINE,
    GROUP,
    LENGTH_X,
    LENGTH_Y,
    OF_X,
    OF_Y,
    PLAIN,
)  # fmt: skip
from reference.op import Shape

WEIGHTS_ONTO, MERGING_ONTO = in_place(WEIGHTS), in_place(MERGING)
F16 = TAGS["F16"]


def whole_vectors(shape: Shape) -> bool:
    return shape["head_dim"] % 16 == 0


@njit(inline="always")
def sums(x, y, column, head_dim):
    """Of two rows x x, y y and x y over the elements of a head."""
    of_x = of_y = of_both = 0.0
    for d in range(column, column + head_dim):
        a, b = np.float64(element(F16, x, d)), np.float64(element(F16, y, d))
        of_x += a * a
        of_y += b * b
        of_both += a * b
    return of_x, of_y, of_both


@njit(inline="always")
def share_of(part, angle):
    """sin(part angle) / sin(angle), or the part where the angle is 0."""
    return math.sin(part * angle) / math.sin(angle) if angle > 0.0 else part


def weighing():
    def slerp_weights(args, thread, n_threads):
        x, y, lists, due, towards, out = arguments(args, WEIGHTS_ONTO)
        sequences, kv_heads, _, _ = out.shape
        head_dim, item = x.shape[1] // 2 // kv_heads, 0
        for s in range(sequences):
            for p in range(due[s, 0], due[s, 1]):
                for g in range(kv_heads):
                    item += 1
                    if item % n_threads != thread:
                        continue
                    for place in range(p * GROUP, (p + 1) * GROUP):
                        cell = lists[s, place]
                        of_x, of_y, of_both = sums(x[cell], y[cell], g * head_dim, head_dim)
                        length_x, length_y = math.sqrt(of_x), math.sqrt(of_y)
                        both = length_x * length_y
                        cosine = of_both / both if both > 0.0 else 1.0
                        angle = math.acos(min(max(cosine, LEAST_COSINE), 1.0))
                        share_x = share_of(1.0 - towards, angle) if of_y > 0.0 else 1.0
                        share_y = share_of(towards, angle) if of_x > 0.0 else 1.0
                        out[s, g, COSINE, place] = cosine
                        out[s, g, OF_X, place] = share_x / length_x if of_x > 0.0 else 0.0
                        out[s, g, OF_Y, place] = share_y / length_y if of_y > 0.0 else 0.0
                        out[s, g, LENGTH_X, place] = length_x
                        out[s, g, LENGTH_Y, place] = length_y

    return slerp_weights


@njit(inline="always")
def is_retained(cosines, begin, i, retained):
    """Whether fewer tokens of the page than the retained number precede this one in order of
    cosine, ties by position."""
    own, before = cosines[begin + i], 0
    for j in range(GROUP):
        other = cosines[begin + j]
        before += other < own or (other == own and j < i)
    return before < retained


def merging():
    def merge_blocks(args, thread, n_threads):
        x, y, weights, lists, due, page_lists, out = arguments(args, MERGING_ONTO)
        sequences, kv_heads, _, places = weights.shape
        size, flat, known = out.shape[2], out.reshape(out.size), weights.reshape(weights.size)
        head_dim = x.shape[1] // 2 // kv_heads
        width, item = 2 * head_dim, 0
        retained = (size - PLAIN) // width - GROUP
        for s in range(sequences):
            for p in range(due[s, 0], due[s, 1]):
                for g in range(kv_heads):
                    item += 1
                    if item % n_threads != thread:
                        continue
                    row = (np.int64(page_lists[s, p]) * kv_heads + g) * size
                    lengths = row + (GROUP + retained) * width
                    of_head = (s * kv_heads + g) * 5 * places + p * GROUP
                    merged, kept = 0, GROUP - retained
                    for i in range(GROUP):
                        cell, at = np.int64(lists[s, p * GROUP + i]), of_head + i
                        column = cell * x.shape[1] + g * width
                        apart = is_retained(known, of_head + COSINE * places, i, retained)
                        number = kept if apart else merged
                        into = row + number * width
                        if apart:
                            for byte in range(width):
                                flat[into + byte] = x[cell, g * width + byte]
                                flat[into + retained * width + byte] = y[cell, g * width + byte]
                            kept += 1
                        else:
                            of_x = splat(f32x16, known[at + OF_X * places])
                            of_y = splat(f32x16, known[at + OF_Y * places])
                            for d in range(0, head_dim, 16):
                                lower = mul(of_x, sixteen(F16, x, column, d))
                                upper = mul(of_y, sixteen(F16, y, column, d))
                                store(flat, into + 2 * d, convert(f16x16, add(lower, upper)))
                            merged += 1
                        put_length(flat, lengths + 4 * i, known[at + LENGTH_X * places], apart)
                        after = lengths + 4 * GROUP + 4 * i
                        put_length(flat, after, known[at + LENGTH_Y * places], apart)
                        flat[lengths + 8 * GROUP + i] = number

    return merge_blocks


@njit(inline="always")
def put_length(out, at, length, apart):
    """Write a float32 as four bytes: 1 where a token's vectors are kept unmerged."""
    bits = np.float32(1.0 if apart else length).view(np.int32)
    for byte in range(4):
        out[at + byte] = (bits >> (8 * byte)) & 0xFF


WEIGHING = {"F16": Share(weighing, WEIGHTS_ONTO, "weights")}
MERGED = {"F16": Share(merging, MERGING_ONTO, "merging")}
