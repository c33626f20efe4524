"""A kernel bound to arrays, and the plain call: the reference's parameters plus outputs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kernels.cpu import quantise_activations
from kernels.cpu.share import Share, Words, pack_words
from kernels.kernel import Kernel
from reference.formats import FORMATS
from reference.op import DTYPES, Argument, Arguments, Array, Op
from reference.quantise_activations import BLOCK

# Runs a bound kernel: shares of `n_threads`, one after another in `order`, stage by stage.
Run = Callable[[int, Sequence[int]], None]


class ShapeError(ValueError):
    """An argument whose shape or type the op does not take."""


def sizes(op: Op, inputs: Mapping[str, Any], format: str | None = None) -> dict[str, int]:
    """The op's named sizes as the arrays have them; every disagreement is an error."""
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


def stages(
    kernel: Kernel, inputs: Arguments, outputs: Mapping[str, Array], packed: Array | None = None
) -> list[tuple[Share, Words, Any]]:
    """(share, block, what must stay alive) of each stage, memory allocated, the weight packed
    unless it is given `packed`."""
    values: dict[str, Any] = {**inputs, **outputs}
    result = []
    for output, source in kernel.in_place:
        values[output][...] = values[source]
    if kernel.pack:
        values["weight"] = kernel.pack(values["weight"], 3) if packed is None else packed
    if kernel.activations == "int8":
        x = values["x"]
        values["q"] = np.empty(x.shape, np.int8)
        values["scale"] = np.empty((len(x), x.shape[1] // BLOCK), np.float32)
        values["total"] = np.empty((len(x), x.shape[1] // BLOCK), np.int32)
        quantise = quantise_activations.generic
        result.append((quantise, pack_words(quantise.signature, values), values))
    if kernel.scratch:
        shape = sizes(kernel.spec, inputs, kernel.format)
        values["scratch"] = np.full(kernel.scratch(shape), np.nan, np.float32)
    called = [(share, pack_words(share.signature, values), values) for share in kernel.shares]
    return result + called


def bind(kernel: Kernel, inputs: Arguments, outputs: Mapping[str, Array]) -> Run:
    """The kernel over these arrays; what it updates in place is copied once, here."""
    bound = stages(kernel, inputs, outputs)

    def run(n_threads: int = 1, order: Sequence[int] = (0,)) -> None:
        for share, block, _ in bound:
            for thread in order:
                share(block, thread, n_threads)

    return run


def empty_outputs(op: Op, shape: Mapping[str, int], format: str | None) -> dict[str, Array]:
    """Uninitialised arrays for the outputs of these sizes."""
    return {
        o.name: np.empty(o.dims(shape, format), DTYPES.get(o.dtype, np.uint8)) for o in op.outputs
    }


def call(kernel: Kernel, inputs: Arguments) -> dict[str, Array]:
    """The plain call, checked: the reference's parameters in, its outputs by name out."""
    op = kernel.spec
    shape = sizes(op, inputs, kernel.format)
    if complaint := op.complaint({**inputs, "format": kernel.format}):
        raise ShapeError(f"{op.name}: {complaint}")
    if not kernel.takes(shape):
        raise ShapeError(f"{kernel.name} does not take {shape}")
    outputs = empty_outputs(op, shape, kernel.format)
    bind(kernel, inputs, outputs)(1, (0,))
    return outputs
