"""This machine's kernels, and how tests call them: those for its CPU and, if there is a C++
compiler, those for GPUs on an emulator (conformance/cuda/emulator.py).

For the CPU every format is tested with the variant that this machine would choose, in either
numerics; variants that decode or multiply by another op's code only in one format of each kind. So
are other variants, portable ones and the fallback `scalar` included, whose loops are the same for
all formats, and GPU kernels whose rows are decoded by others; deep runs test every one.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided
from numpy.testing import assert_array_equal

from conformance.cuda.emulator import compiler
from conformance.support.depth import DEEP
from kernels.call import AnyKernel, call, stages
from kernels.cuda.runtime import call as cuda
from kernels.cuda.runtime.current import current
from kernels.cuda.runtime.device import upload
from kernels.cuda.runtime.kernel import CudaKernel
from kernels.cuda.table import CUDA_KERNELS
from kernels.dispatch import first_of
from kernels.guard import at_page_end
from kernels.shapes import empty_outputs, sizes
from kernels.table import KERNELS
from reference.op import Arguments, Array, Case

GAP = 5  # bytes between bundles: odd, so that rows are unaligned
KINDS = {"F16", "Q4_0", "Q4_1", "Q8_0", "Q2_K", "Q4_K", "Q6_K", "IQ4_XS", "MXFP4", None}
OWN_CODE = KINDS | {"F32", "BF16"}  # formats of portable and GPU kernels with code besides decoding
ABLE = [kernel for kernel in KERNELS if not kernel.missing()]
# Ops that share the format-specific code of `dequantise` and `linear`, by target.
ALIKE = {"cpu": {"embedding", "linear_experts"},
         "cuda": {"embedding", "linear_experts", "sparse_axpy"}}  # fmt: skip
CHOSEN = first_of(ABLE) | first_of(k for k in ABLE if not k.requires and k.format in OWN_CODE)


def own_code(kernel: AnyKernel) -> bool:
    """Whether it runs code that no other op's kernel in its format runs."""
    return kernel.format in OWN_CODE or kernel.op not in ALIKE[kernel.target]


def serves(kernel: AnyKernel) -> bool:
    """Whether this machine, or one without CPU features, would choose a kernel in its format; for
    kernels without code of their own, only in one format of each kind."""
    return kernel.target == "cpu" and kernel.name in CHOSEN and own_code(kernel)


ON_CPU = [kernel for kernel in ABLE if DEEP or kernel.format in KINDS or kernel.name in CHOSEN]
ON_GPU = [kernel for kernel in CUDA_KERNELS if DEEP or own_code(kernel)]
HERE: list[AnyKernel] = [*ON_CPU, *(ON_GPU if compiler() else ())]


def each(*ops: str, formats: tuple[str | None, ...] = (), target: str = "") -> pytest.MarkDecorator:
    """Run a test with every kernel of these ops (formats, target) on this machine."""
    chosen = [
        k
        for k in HERE
        if k.op in ops and k.format in (formats or (k.format,)) and target in ("", k.target)
    ]
    return pytest.mark.parametrize("kernel", chosen, ids=[k.name for k in chosen])


def run(kernel: AnyKernel, **inputs: Any) -> Array:
    """The kernel's only output."""
    (out,) = call(kernel, inputs).values()
    return out


def run_packed(kernel: AnyKernel, packed: Array, **inputs: Any) -> Array:
    """The kernel's only output for a weight in the layout of `packed`."""
    shape = sizes(kernel.spec, inputs, kernel.format)
    outputs = empty_outputs(kernel.spec, shape, kernel.format)
    if isinstance(kernel, CudaKernel):
        cuda.bind(kernel, inputs, outputs, uploaded(packed, inputs["weight"]))(1, (0,))
    else:
        for share, block, _ in stages(kernel, inputs, outputs, packed):
            share(block)
    (out,) = outputs.values()
    return out


def uploaded(packed: Array, weight: Array) -> cuda.Rows:
    """A device's copy of the span of a weight's view, with the same alignment modulo 16."""
    (held, row_bytes), (stride, _) = weight.shape, packed.strides
    reach = (held - 1) * stride + row_bytes
    begin = packed.ctypes.data % 16
    memory = np.full(begin + reach, 0xFF, np.uint8)
    memory[begin:] = as_strided(packed, (reach,), (1,))
    return cuda.Rows(upload(current(), memory).at(begin, reach), stride)


def bundled(*weights: Array) -> list[Array]:
    """Weights [held, row_bytes] as rows of one pool, row i of all side by side, then NaN: for each
    a view [held, stride] from its first row on. The views of all but the first extend beyond the
    pool, whose last row is at the end of memory."""
    held, row_bytes = weights[0].shape
    stride = len(weights) * row_bytes + GAP
    pool = at_page_end(np.full(held * stride - GAP, 0xFF, np.uint8))
    views = []
    for i, weight in enumerate(weights):
        view = as_strided(pool[i * row_bytes :], (held, stride), (stride, 1))
        view[:, :row_bytes] = weight
        views.append(view)
    return views


def resident(inputs: Arguments) -> Arguments:
    """The same with a row for every neuron, active or not."""
    return {**inputs, "slots": inputs["slots"] % len(inputs["weight"])}


def assert_rows_anywhere(kernel: AnyKernel, inputs: Arguments, seed: int) -> None:
    """Permuting the rows with the slots changes no bit; nor do rows in bundles."""
    weight, expected = inputs["weight"], run(kernel, **inputs)
    order = np.random.default_rng(seed).permutation(len(weight))
    place = np.argsort(order).astype(np.int32)
    moved = {**inputs, "weight": weight[order], "slots": place[resident(inputs)["slots"]]}
    assert_array_equal(run(kernel, **moved), expected)
    three = weight, np.roll(weight, 1, axis=0), weight[::-1].copy()
    for own, packed in zip(three, bundled(*three), strict=True):
        alone = {**inputs, "weight": own}
        assert_array_equal(run_packed(kernel, packed, **alone), run(kernel, **alone))


def inputs_of(kernel: AnyKernel, seed: int = 0, values: str = "normal", **shape: int) -> Any:
    """The op's own seeded arguments for these sizes, and usual ones otherwise."""
    op = kernel.spec
    return op.make(op.case(shape, values, seed, kernel.format))


def arguments(kernel: AnyKernel) -> st.SearchStrategy[Arguments]:
    """The arguments of any case of the op that the kernel supports."""
    taken = cases(kernel).filter(lambda case: kernel.takes(case.shape))
    return taken.map(kernel.spec.make)


@st.composite
def cases(draw: st.DrawFn, kernel: AnyKernel) -> Case:
    """Any case of the op that the kernel supports: awkward sizes, and all between."""
    op = kernel.spec
    sizes = {}
    for axis, awkward in op.axes.items():
        size = st.sampled_from(awkward)
        if tuple(awkward) != (0, 1):  # otherwise a flag
            size |= st.integers(min(awkward), max(awkward) * 5 // 4)
        sizes[axis] = draw(size)
    values, seed = draw(st.sampled_from(op.values)), draw(st.integers(0, 2**32 - 1))
    return op.case(sizes, values, seed, kernel.format)
