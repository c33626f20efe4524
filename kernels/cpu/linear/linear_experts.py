"""linear_experts on the CPU: linear's own kernels, once for each expert with tokens.

Such a kernel takes its arguments in a block of words (runtime/share.py). A block is built for every
expert, of its tokens, weights and outputs, and linear's machine code is called: every variant and
format of linear works, none is compiled twice, and the bits are linear's. Threads split the rows of
each expert as in linear.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numba import njit

from kernels.cpu.isa.simd_shuffle import stack
from kernels.cpu.linear import linear_scalar
from kernels.cpu.runtime.share import Share, arguments, call_other
from reference.linear_experts import OP

PACKED = " ends: i32[experts], weight: u8[held packed], slots: i32[experts], tuning: i64[knobs]"
FLOAT = f"x: f32[tokens hidden],{PACKED} -> out: f32[tokens out]"
INT8 = (
    "q: i8[tokens hidden], scale: f32[tokens hidden/32], total: i32[tokens hidden/32],"
    f"{PACKED} -> out: f32[tokens out]"
)
SCALAR_SIGNATURE = OP.signature
MOST_WORDS = 16  # of linear's blocks


@njit(inline="always")
def put_matrix(words, at, array, begin, count):
    """Write a matrix of so many rows to a block. -> the next index."""
    words[at] = array[begin:].ctypes.data
    words[at + 1], words[at + 2] = count, array.shape[1]
    return at + 3


@njit(inline="always")
def put_vector(words, at, vector):
    words[at] = vector.ctypes.data
    words[at + 1] = len(vector)
    return at + 2


@njit(inline="always")
def put_floats(words, given, e, begin, count):
    x, _, weight, slots, tuning, out = given
    at = put_matrix(words, 0, x, begin, count)
    at = put_vector(words, at, weight[slots[e]])
    at = put_vector(words, at, tuning)
    put_matrix(words, at, out, begin, count)


@njit(inline="always")
def put_int8(words, given, e, begin, count):
    q, scale, total, _, weight, slots, tuning, out = given
    at = put_matrix(words, 0, q, begin, count)
    at = put_matrix(words, at, scale, begin, count)
    at = put_matrix(words, at, total, begin, count)
    at = put_vector(words, at, weight[slots[e]])
    at = put_vector(words, at, tuning)
    put_matrix(words, at, out, begin, count)


@njit(inline="always")
def put_rows(words, given, e, begin, count):
    x, _, weight, slots, out = given
    at = put_matrix(words, 0, x, begin, count)
    at = put_matrix(words, at, weight[slots[e]], 0, weight.shape[1])
    put_matrix(words, at, out, begin, count)


@dataclass(frozen=True, slots=True)
class Kind:
    """The contents of linear's block: put(words, arguments, expert, begin, count) writes it for
    `count` tokens of the expert from `begin`, from arguments whose `ends` are at an index."""

    signature: str
    ends: int
    put: Any


FLOATS, CODES = Kind(FLOAT, 1, put_floats), Kind(INT8, 3, put_int8)
ROWS = Kind(SCALAR_SIGNATURE, 1, put_rows)


def kernel_of(kind: Kind) -> Callable[..., None]:
    signature, at, put_own = kind.signature, kind.ends, kind.put

    def kernel(args, thread, n_threads):
        given = arguments(args, signature)
        ends, words, begin = given[at], stack(np.int64, MOST_WORDS), 0
        for e in range(len(ends)):
            count = ends[e] - begin
            if count > 0:
                put_own(words, given, e, begin, count)
                call_other(np.uint64(words.ctypes.data), thread, n_threads)
            begin = ends[e]

    return kernel


def shares(kind: Kind, of_linear: Mapping[str, Share]) -> dict[str, Share]:
    """One share for each format, which calls linear's."""
    make = partial(kernel_of, kind)
    return {name: Share(make, kind.signature, calls=one) for name, one in of_linear.items()}


SCALAR = shares(ROWS, linear_scalar.SHARES)
