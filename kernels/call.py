"""Binds a kernel to arrays, and calls one directly with the reference's parameters plus outputs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kernels.cpu import quantise_activations
from kernels.cpu.runtime.share import Share, Words, pack_words
from kernels.cuda.runtime import call as cuda
from kernels.cuda.runtime.current import current
from kernels.cuda.runtime.kernel import CudaKernel
from kernels.kernel import Kernel
from kernels.knob import NONE_CHOSEN, Values, array_of
from kernels.shapes import ShapeError, empty_outputs, sizes
from reference.op import Arguments, Array
from reference.quantise_activations import BLOCK, QUANTISING

AnyKernel = Kernel | CudaKernel

# Runs a bound kernel: shares of `n_threads`, sequentially in `order`, stage by stage.
Run = Callable[[int, Sequence[int]], None]


def stages(
    kernel: Kernel,
    inputs: Arguments,
    outputs: Mapping[str, Array],
    packed: Array | None = None,
    allocate: Callable[[tuple[int, ...], Any], Array] = np.empty,
    tuning: Values = NONE_CHOSEN,
) -> list[tuple[Share, Words, Any]]:
    """(share, args, what must stay alive) of each stage, with memory allocated and the weight
    packed unless `packed` is given; knobs have `tuning`'s values, or else their defaults."""
    values: dict[str, Any] = {**inputs, **outputs}
    result = []
    for output, source in kernel.in_place:
        values[output][...] = values[source]
    if kernel.pack:
        values["weight"] = kernel.pack(values["weight"], 3) if packed is None else packed
    if kernel.activations in QUANTISING:
        x = values["x"]
        values["q"] = allocate(x.shape, np.int8)
        values["scale"] = allocate((len(x), x.shape[1] // BLOCK), np.float32)
        values["total"] = allocate((len(x), x.shape[1] // BLOCK), np.int32)
        quantise = quantise_activations.SHARES[kernel.activations]
        result.append((quantise, pack_words(quantise.signature, values), values))
    if kernel.scratch:
        shape = sizes(kernel.spec, inputs, kernel.format)
        values["scratch"] = allocate((kernel.scratch(shape),), np.float32)
        values["scratch"].fill(np.nan)
    if kernel.knobs:
        values["tuning"] = allocate((len(kernel.knobs),), np.int64)
        values["tuning"][:] = array_of(kernel.knobs, tuning)
    called = [(share, pack_words(share.signature, values), values) for share in kernel.shares]
    return result + called


def emulated(kernel: AnyKernel) -> bool:
    """Whether this process emulates the kernel's GPU."""
    return isinstance(kernel, CudaKernel) and current().emulated


def bind(
    kernel: AnyKernel,
    inputs: Arguments,
    outputs: Mapping[str, Array],
    tuning: Values = NONE_CHOSEN,
) -> Run:
    """Bind the kernel to these arrays; inputs that it updates in place are copied once, here."""
    if isinstance(kernel, CudaKernel):
        return cuda.bind(kernel, inputs, outputs)
    bound = stages(kernel, inputs, outputs, tuning=tuning)

    def run(n_threads: int = 1, order: Sequence[int] = (0,)) -> None:
        for share, args, _ in bound:
            for thread in order:
                share(args, thread, n_threads)

    return run


def call(kernel: AnyKernel, inputs: Arguments) -> dict[str, Array]:
    """Call a kernel, checked: the reference's parameters in, its outputs by name out."""
    op = kernel.spec
    shape = sizes(op, inputs, kernel.format)
    if complaint := op.complaint({**inputs, "format": kernel.format}):
        raise ShapeError(f"{op.name}: {complaint}")
    if not kernel.takes(shape):
        raise ShapeError(f"{kernel.name} does not take {shape}")
    outputs = empty_outputs(op, shape, kernel.format)
    bind(kernel, inputs, outputs)(1, (0,))
    return outputs
