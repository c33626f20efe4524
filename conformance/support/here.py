"""This machine's kernels, and how tests call them: those for its CPU, and where there is a C++
compiler those for GPUs, which an emulator takes the place of (conformance/cuda/emulator.py).

Of the CPU's every format has what this machine would choose, in either numerics; what decodes or
multiplies by another op's code is a further variant in all but one format of each kind. Others,
portable ones and the fallback `scalar` among them, whose loops are the same for all formats, have
one format of each kind, and so have those for GPUs whose rows others decode; deep runs have every
one."""

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

GAP = 5  # bytes between bundles: an odd number, so that rows lie anywhere
KINDS = {"F16", "Q4_0", "Q4_1", "Q8_0", "Q2_K", "Q4_K", "Q6_K", "IQ4_XS", "MXFP4", None}
OWN_CODE = KINDS | {"F32", "BF16"}  # of portable kernels and those for GPUs, beside decoding
ABLE = [kernel for kernel in KERNELS if not kernel.missing()]
# Of their formats they run nothing that `dequantise` and `linear` do not, by target.
ALIKE = {"cpu": {"embedding", "linear_experts"},
         "cuda": {"embedding", "linear_experts", "sparse_axpy"}}  # fmt: skip
CHOSEN = first_of(ABLE) | first_of(k for k in ABLE if not k.requires and k.format in OWN_CODE)


def own_code(kernel: AnyKernel) -> bool:
    """Whether it runs what no other op's kernel in its format does."""
    return kernel.format in OWN_CODE or kernel.op not in ALIKE[kernel.target]


def serves(kernel: AnyKernel) -> bool:
    """Whether this machine would choose a kernel, of those alike in one format of each kind, or
    another machine without features would, in such a format."""
    return kernel.target == "cpu" and kernel.name in CHOSEN and own_code(kernel)


ON_CPU = [kernel for kernel in ABLE if DEEP or kernel.format in KINDS or kernel.name in CHOSEN]
ON_GPU = [kernel for kernel in CUDA_KERNELS if DEEP or own_code(kernel)]
HERE: list[AnyKernel] = [*ON_CPU, *(ON_GPU if compiler() else ())]


def each(*ops: str, formats: tuple[str | None, ...] = (), target: str = "") -> pytest.MarkDecorator:
    """Run a test with every kernel of these ops (and formats) that this machine has, of one target
    if need be."""
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
    """The kernel's only output over a weight that lies as `packed` has it."""
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
    """A device's copy of what a view of a weight spans, as far from a multiple of 16 as here."""
    (held, row_bytes), (stride, _) = weight.shape, packed.strides
    reach = (held - 1) * stride + row_bytes
    begin = packed.ctypes.data % 16
    memory = np.full(begin + reach, 0xFF, np.uint8)
    memory[begin:] = as_strided(packed, (reach,), (1,))
    return cuda.Rows(upload(current(), memory).at(begin, reach), stride)


def bundled(*weights: Array) -> list[Array]:
    """Weights [held, row_bytes] as rows of one pool, row i of all side by side, then NaN: for each
    what a kernel is told, [held, stride] from its first row on. All but the first say that they go
    on behind the pool, where memory ends with its last row."""
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
    """The same with some row for every neuron, active or not."""
    return {**inputs, "slots": inputs["slots"] % len(inputs["weight"])}


def demand_rows_anywhere(kernel: AnyKernel, inputs: Arguments, seed: int) -> None:
    """Rows in another order, and the slots with them, make the same bits; so do rows of bundles."""
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
    """The op's own seeded arguments for these sizes, and usual ones elsewhere."""
    op = kernel.spec
    return op.make(op.case(shape, values, seed, kernel.format))


def arguments(kernel: AnyKernel) -> st.SearchStrategy[Arguments]:
    """The arguments of any case of the op that the kernel takes."""
    taken = cases(kernel).filter(lambda case: kernel.takes(case.shape))
    return taken.map(kernel.spec.make)


@st.composite
def cases(draw: st.DrawFn, kernel: AnyKernel) -> Case:
    """Any case of the op that the kernel takes: awkward sizes, and all those between."""
    op = kernel.spec
    sizes = {}
    for axis, awkward in op.axes.items():
        size = st.sampled_from(awkward)
        if tuple(awkward) != (0, 1):  # else it is a switch
            size |= st.integers(min(awkward), max(awkward) * 5 // 4)
        sizes[axis] = draw(size)
    values, seed = draw(st.sampled_from(op.values)), draw(st.integers(0, 2**32 - 1))
    return op.case(sizes, values, seed, kernel.format)
