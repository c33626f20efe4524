"""Planted bugs for any op: outputs that depend on unrelated inputs, or on none."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from conformance.bugs.bug import Bug
from conformance.bugs.shares import storing
from reference.op import Arguments, Array, Op
from reference.table import OPS

Way = Callable[[Op, Arguments], list[Array]]
INFINITE = "add", "swiglu", "linear"  # of infinite inputs outputs are infinite, too


def changed(value: Array, by: Array) -> Array:
    """Values changed by `by` hundredths; integers become other ones, except for a third of them."""
    if value.dtype.kind == "f":
        return np.asarray(value * (1 + 0.01 * (by % 97)) + 0.01 * by)
    return np.asarray(value ^ np.asarray(by % 3 != 0, value.dtype))


def values_of(op: Op, inputs: Arguments) -> list[Array]:
    return [np.asarray(value) for value in op.expected(inputs).values()]


def counts(op: Op, inputs: Arguments) -> list[Array]:
    """Outputs change with the number of elements."""
    size = np.array(sum(value.size for value in inputs.values() if isinstance(value, np.ndarray)))
    return [changed(value, size) for value in values_of(op, inputs)]


def drifts(op: Op, inputs: Arguments) -> list[Array]:
    """The error grows with the index."""
    values = values_of(op, inputs)
    return [changed(v, 1 + np.arange(v.size).reshape(v.shape)) for v in values]


def leans(op: Op, inputs: Arguments) -> list[Array]:
    """All outputs depend on the sum of all inputs."""
    arrays = [value for value in inputs.values() if isinstance(value, np.ndarray)]
    lean = np.tanh(sum(np.sum(array, dtype=np.float64) for array in arrays))
    return [
        np.asarray(v * (1 + lean)) if v.dtype.kind == "f" else changed(v, np.asarray(lean > 0))
        for v in values_of(op, inputs)
    ]


def below_zero_gone(op: Op, inputs: Arguments) -> list[Array]:
    """Removes logits that are not positive, as if logits had no free constant."""
    return [np.where(v > 0, v, -np.inf) for v in values_of(op, inputs)]


def likeliest_gone(op: Op, inputs: Arguments) -> list[Array]:
    gone = np.arange(inputs["logits"].size) == np.argmax(inputs["logits"])
    return [np.where(gone, -np.inf, v) for v in values_of(op, inputs)]


def negated(op: Op, inputs: Arguments) -> list[Array]:
    """All outputs are negated."""
    values = values_of(op, inputs)
    return [-v if v.dtype.kind == "f" else changed(v, np.array(1)) for v in values]


def tamed(op: Op, inputs: Arguments) -> list[Array]:
    """Infinities become the largest number, as an infinite bound would excuse."""
    most = np.finfo(np.float32).max
    return [np.nan_to_num(v, nan=np.nan, posinf=most, neginf=-most) for v in values_of(op, inputs)]


def by(op: Op, way: Way) -> Callable[..., tuple[Array, ...]]:
    return lambda **inputs: tuple(way(op, inputs))


def bugs() -> Iterator[Bug]:
    """The bugs of every op, in its first format."""
    for op in OPS.values():
        gives_logits = [str(out) for out in op.outputs] == ["out: f32[vocab]"]
        of_logits = (below_zero_gone, likeliest_gone) if gives_logits else ()
        of_infinite = (tamed,) if op.name in INFINITE else ()
        for way in (counts, drifts, leans, negated, *of_logits, *of_infinite):
            yield Bug(op.name, "python", way.__name__, storing(by(op, way)), first_format(op))


def first_format(op: Op) -> str | None:
    return op.formats[0] if op.formats else None


# Null kernels, which compute nothing: no output of theirs may pass, for any op.


def untouched(inputs: Arguments, outputs: Mapping[str, Array], thread: int, n_threads: int) -> None:
    """Outputs are not written."""


def zeros(op: Op, inputs: Arguments) -> list[Array]:
    return [np.zeros_like(v) for v in values_of(op, inputs)]


def echo(op: Op, inputs: Arguments) -> list[Array]:
    """The first input's values, repeated to the outputs' size."""
    first = next(value for value in inputs.values() if isinstance(value, np.ndarray))
    return [np.resize(first, v.shape) for v in values_of(op, inputs)]


def stale_of(op: Op) -> Way:
    kept: dict[str, list[Array]] = {}

    def stale(op: Op, inputs: Arguments) -> list[Array]:
        """The right result of the first call with outputs of these shapes."""
        values = values_of(op, inputs)
        return kept.setdefault(str([v.shape for v in values]), values)

    return stale


def mean(op: Op, inputs: Arguments) -> list[Array]:
    """Each output's mean everywhere."""
    values = values_of(op, inputs)
    return [np.full(v.shape, np.mean(v, dtype=np.float64)) if v.size else v for v in values]


def another_token(op: Op, inputs: Arguments) -> list[Array]:
    """The right rows, shifted down by one."""
    return [np.roll(v, 1, axis=0) for v in values_of(op, inputs)]


def null_kernels() -> Iterator[Bug]:
    """Every null kernel for every op, in its first format, since none reads it."""
    for op in OPS.values():
        ways: dict[str, Way] = {"zeros": zeros, "echo": echo, "stale": stale_of(op)}
        if any(out.axes != ("1",) for out in op.outputs):  # else the mean and any row are it
            ways["mean"] = mean
            if op.name != "union_mask":  # every token's output is the same
                ways["another-token"] = another_token
        works = {"untouched": untouched} | {n: storing(by(op, way)) for n, way in ways.items()}
        for name, work in works.items():
            yield Bug(op.name, "python", name, work, first_format(op))


BUGS, NULL = tuple(bugs()), tuple(null_kernels())
