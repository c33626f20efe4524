"""Checks the sizes of arguments and derives those of outputs."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from reference.formats import FORMATS
from reference.op import DTYPES, Argument, Array, Op


class ShapeError(ValueError):
    """An argument whose shape or type the op does not take."""


def in_place(signature: str, scratch: str = "") -> str:
    """The signature of an op whose kernel updates an output in its own memory: without `before`,
    the previous contents, and with scratch of these axes, if any."""
    given, outputs = signature.split(" -> ")
    kept = [argument for argument in given.split(", ") if not argument.startswith("before: ")]
    return f"{', '.join([*kept, *([f'scratch: f32[{scratch}]'] if scratch else [])])} -> {outputs}"


def sizes(op: Op, inputs: Mapping[str, Any], format: str | None = None) -> dict[str, int]:
    """The op's named sizes as given by the arrays; any disagreement is an error."""
    found: dict[str, int] = {}
    names = {argument.name for argument in op.inputs}
    if strange := [name for name in inputs if name not in names and name != "format"]:
        raise ShapeError(f"{op.name} has no argument {strange[0]!r}: {sorted(names)}")
    if inputs.get("format", format) != format:
        raise ShapeError(f"{op.name}: the kernel is for {format}, got format {inputs['format']}")
    for argument in op.inputs:
        if argument.name not in inputs:
            raise ShapeError(f"{op.name}: argument {argument.name} is missing")
        if argument.axes:
            _check_kind(op, argument, inputs[argument.name])
            for axis, size in zip(argument.axes, _dims(op, argument, inputs, format), strict=True):
                if axis.isidentifier():
                    expected = found.setdefault(axis, size)
                    _agree(op, argument, axis, size, expected)
        elif argument.name in op.axes:  # a scalar named like an axis is its size
            found[argument.name] = int(inputs[argument.name])
    for argument in op.inputs:  # products such as kv_heads*head_dim, once their factors are known
        if argument.axes:
            for axis, size in zip(argument.axes, _dims(op, argument, inputs, format), strict=True):
                if "*" in axis:
                    unknown, known = axis.split("*")
                    found.setdefault(unknown, size // max(1, found[known]))
                    _agree(op, argument, axis, size, found[unknown] * found[known])
                elif axis.isdigit():
                    _agree(op, argument, axis, size, int(axis))
    return found


def _check_kind(op: Op, argument: Argument, value: Any) -> None:
    dtype = np.dtype(DTYPES.get(argument.dtype, np.uint8))
    if not isinstance(value, np.ndarray) or value.dtype != dtype:
        got = getattr(value, "dtype", type(value).__name__)
        raise ShapeError(f"{op.name}: {argument.name} is {dtype} {list(argument.axes)}, got {got}")
    if value.ndim != len(argument.axes):
        raise ShapeError(
            f"{op.name}: {argument.name} has axes {list(argument.axes)}, got shape {value.shape}"
        )
    if not value.flags.c_contiguous:
        raise ShapeError(f"{op.name}: {argument.name} must be C-contiguous, got a strided view")


def _dims(
    op: Op, argument: Argument, inputs: Mapping[str, Any], format: str | None
) -> tuple[int, ...]:
    dims: tuple[int, ...] = inputs[argument.name].shape
    if argument.dtype != "format":
        return dims
    layout = FORMATS[format or "F32"]
    if dims[-1] % layout.block_bytes:
        raise ShapeError(
            f"{op.name}: rows of {argument.name} are whole {layout.name} blocks of"
            f" {layout.block_bytes} bytes, got {dims[-1]} bytes"
        )
    return (*dims[:-1], dims[-1] // layout.block_bytes * layout.block)


def _agree(op: Op, argument: Argument, axis: str, got: int, expected: int) -> None:
    if got != expected:
        raise ShapeError(f"{op.name}: {argument.name} has {axis} = {got}, expected {expected}")


def empty_outputs(op: Op, shape: Mapping[str, int], format: str | None) -> dict[str, Array]:
    """Uninitialised output arrays for these sizes."""
    return {
        o.name: np.empty(o.dims(shape, format), DTYPES.get(o.dtype, np.uint8)) for o in op.outputs
    }
