"""This machine's kernels, and how tests call them."""

from typing import Any

import pytest
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from kernels.call import bind, call, empty_outputs, sizes
from kernels.kernel import Kernel
from kernels.table import KERNELS
from reference.op import Arguments, Array, Case
from reference.table import OPS

HERE = [kernel for kernel in KERNELS if not kernel.missing()]


def each(*ops: str, formats: tuple[str | None, ...] = ()) -> pytest.MarkDecorator:
    """Run a test with every kernel of these ops (and formats) that this machine has."""
    chosen = [k for k in HERE if k.op in ops and (not formats or k.format in formats)]
    return pytest.mark.parametrize("kernel", chosen, ids=[k.name for k in chosen])


def run(kernel: Kernel, **inputs: Any) -> Array:
    """The kernel's only output."""
    (out,) = call(kernel, inputs).values()
    return out


def call_by(kernel: Kernel, n_threads: int, inputs: Arguments) -> dict[str, Array]:
    """The kernel's outputs by name, made by so many threads of which the last comes first."""
    shape = sizes(kernel.spec, inputs, kernel.format)
    outputs = empty_outputs(kernel.spec, shape, kernel.format)
    bind(kernel, inputs, outputs)(n_threads, range(n_threads)[::-1])
    return outputs


def demand_one_result(kernel: Kernel, n_threads: int, inputs: Arguments) -> None:
    """So many threads make the bits that one makes."""
    alone, shared = (call_by(kernel, n, inputs) for n in (1, n_threads))
    for name, value in alone.items():
        assert_array_equal(shared[name], value)


def inputs_of(kernel: Kernel, seed: int = 0, values: str = "normal", **shape: int) -> Any:
    """The op's own seeded arguments for these sizes, and usual ones elsewhere."""
    op = OPS[kernel.op]
    return op.make(op.case(shape, values, seed, kernel.format))


def arguments(kernel: Kernel) -> st.SearchStrategy[Arguments]:
    """The arguments of any case of the op that the kernel takes."""
    taken = cases(kernel).filter(lambda case: kernel.takes(case.shape))
    return taken.map(lambda case: OPS[kernel.op].make(case))


@st.composite
def cases(draw: st.DrawFn, kernel: Kernel) -> Case:
    """Any case of the op that the kernel takes: awkward sizes, and all those between."""
    op = OPS[kernel.op]
    sizes = {}
    for axis, awkward in op.axes.items():
        size = st.sampled_from(awkward)
        if tuple(awkward) != (0, 1):  # else it is a switch
            size |= st.integers(min(awkward), max(awkward) * 5 // 4)
        sizes[axis] = draw(size)
    values, seed = draw(st.sampled_from(op.values)), draw(st.integers(0, 2**32 - 1))
    return op.case(sizes, values, seed, kernel.format)
