"""Planted bugs of how shares use memory: right formulas, stored or divided wrongly."""

import ctypes
from collections.abc import Mapping, Sequence
from itertools import count

import numpy as np

from conformance.wrong.wrong import Wrong
from reference.op import Arguments, Array
from reference.table import OPS

Outputs = Mapping[str, Array]


def rows_of(op: str, inputs: Arguments, out: Array) -> Array:
    """The right result in the output's type, as rows."""
    (value,) = OPS[op].expected(inputs).values()
    return value.astype(out.dtype)


def neighbours_part(
    inputs: Arguments, outputs: Outputs, n_threads: int, order: Sequence[int]
) -> None:
    """A race: each share also clears the row after its own, so the last to run decides."""
    out = outputs["out"]
    right = rows_of("rms_norm", inputs, out)
    for thread in order:
        last = len(out) * (thread + 1) // n_threads
        out[len(out) * thread // n_threads : last] = right[len(out) * thread // n_threads : last]
        out[last : last + 1] = 0


def shared_sum(inputs: Arguments, outputs: Outputs, n_threads: int, order: Sequence[int]) -> None:
    """A race: shares of hidden added up in whatever order threads come, in float32."""
    x = inputs["x"]
    weight = OPS["linear"].reference(np.eye(x.shape[1], dtype=np.float32), **_of_linear(inputs)).T
    outputs["out"][...] = 0
    for thread in order:
        part = slice(x.shape[1] * thread // n_threads, x.shape[1] * (thread + 1) // n_threads)
        outputs["out"][...] += (x[:, part] @ weight[:, part].T).astype(np.float32)


def _of_linear(inputs: Arguments) -> Arguments:
    return {name: inputs[name] for name in ("weight", "format")}


def remainder_lost(
    inputs: Arguments, outputs: Outputs, n_threads: int, order: Sequence[int]
) -> None:
    """Threads take count // n_threads rows each, and nobody the rest."""
    out = outputs["out"]
    right, each = rows_of("softmax", inputs, out), len(out) // n_threads
    for thread in order:
        out[each * thread : each * (thread + 1)] = right[each * thread : each * (thread + 1)]


def beyond_the_end(
    inputs: Arguments, outputs: Outputs, n_threads: int, order: Sequence[int]
) -> None:
    """A whole vector where the output ends within one: four bytes too many."""
    out = outputs["out"]
    out[...] = rows_of("add", inputs, out)
    ctypes.memset(out.ctypes.data + out.nbytes, 0, 4)


def before_the_start(
    inputs: Arguments, outputs: Outputs, n_threads: int, order: Sequence[int]
) -> None:
    """An index of -1 that compiled code does not wrap."""
    out = outputs["out"]
    out[...] = rows_of("add", inputs, out)
    ctypes.memset(out.ctypes.data - 4, 0, 4)


def input_spoilt(inputs: Arguments, outputs: Outputs, n_threads: int, order: Sequence[int]) -> None:
    """The input used as scratch, its protection bypassed as compiled code would."""
    out, x = outputs["out"], inputs["x"]
    out[...] = rows_of("softmax", inputs, out)
    if x.size:
        ctypes.memset(x.ctypes.data, 0, 4)


def last_left(inputs: Arguments, outputs: Outputs, n_threads: int, order: Sequence[int]) -> None:
    """The last element never stored."""
    out = outputs["out"]
    out.reshape(-1)[:-1] = rows_of("silu", inputs, out).reshape(-1)[:-1]


CALLS = count()


def noisy(inputs: Arguments, outputs: Outputs, n_threads: int, order: Sequence[int]) -> None:
    """Right within the bound, but with another last bit every time."""
    out = outputs["out"]
    right = rows_of("softmax", inputs, out)
    out[...] = np.nextafter(right, np.float32(next(CALLS) % 2))


BUGS = (
    Wrong("rms_norm", "race-for-a-row", neighbours_part),
    Wrong("linear", "race-for-a-sum", shared_sum, "F32"),
    Wrong("softmax", "remainder-lost", remainder_lost),
    Wrong("add", "beyond-the-end", beyond_the_end),
    Wrong("add", "before-the-start", before_the_start),
    Wrong("softmax", "input-spoilt", input_spoilt),
    Wrong("silu", "last-element-left", last_left),
    Wrong("softmax", "noise", noisy),
)
