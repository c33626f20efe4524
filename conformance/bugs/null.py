"""Kernels that do not compute: nothing they return may pass for a result, for any op."""

from collections.abc import Iterator, Mapping

import numpy as np

from conformance.bugs.bug import Bug
from conformance.bugs.shares import Work, first_alone
from reference.op import Arguments, Array, Op
from reference.table import OPS

Outputs = Mapping[str, Array]

ALIKE = ("union_mask",)  # every token's output is the same


def untouched(inputs: Arguments, outputs: Outputs, thread: int, n_threads: int) -> None:
    """Leave the outputs as they were."""


def zeros(inputs: Arguments, outputs: Outputs, thread: int, n_threads: int) -> None:
    """Nothing but zeros."""
    for out in outputs.values():
        out[...] = 0


def echo(inputs: Arguments, outputs: Outputs, thread: int, n_threads: int) -> None:
    """The first input's values, as often as they fit."""
    first = next(value for value in inputs.values() if isinstance(value, np.ndarray))
    for out in outputs.values():
        out[...] = np.resize(first, out.shape)


def mean_of(op: Op) -> Work:
    def mean(inputs: Arguments, outputs: Outputs, thread: int, n_threads: int) -> None:
        """Each output's mean, everywhere."""
        for name, value in op.expected(inputs).items():
            if value.size:
                outputs[name][...] = np.mean(value, dtype=np.float64)

    return mean


def another_token_of(op: Op) -> Work:
    def another(inputs: Arguments, outputs: Outputs, thread: int, n_threads: int) -> None:
        """The right rows, one too far down."""
        for name, value in op.expected(inputs).items():
            outputs[name][...] = np.roll(value, 1, axis=0)

    return another


def stale_of(op: Op) -> Work:
    kept: dict[str, dict[str, Array]] = {}

    def stale(inputs: Arguments, outputs: Outputs, thread: int, n_threads: int) -> None:
        """The right result of the first call with outputs of these shapes."""
        shapes = str([out.shape for out in outputs.values()])
        for name, value in kept.setdefault(shapes, op.expected(inputs)).items():
            outputs[name][...] = value

    return stale


def is_one_number(op: Op) -> bool:
    """Whether the mean of the output, and any of its rows, is the output itself."""
    return all(out.axes == ("1",) for out in op.outputs)


def null_kernels() -> Iterator[Bug]:
    """Every way of not computing, for every op; in its first format, since none looks at it."""
    for op in OPS.values():
        ways = {"untouched": untouched, "zeros": zeros, "echo": echo, "stale": stale_of(op)}
        if not is_one_number(op):
            ways["mean"] = mean_of(op)
            if op.name not in ALIKE:
                ways["another-token"] = another_token_of(op)
        kind = op.formats[0] if op.formats else None
        for name, way in ways.items():
            yield Bug(op.name, "python", name, first_alone(way), kind)


NULL = tuple(null_kernels())
