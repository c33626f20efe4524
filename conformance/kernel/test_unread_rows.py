"""Rows of neurons that nobody needs are not read: in memory that may not be touched, they are not
missed. (The emulated GPU finds reads of rows that are not there: cases have slots which say so.)"""

import ctypes
import faulthandler
import mmap
import os
import signal

import numpy as np
import pytest

from conformance.support.here import each, inputs_of
from kernels.call import stages
from kernels.guard import PROT_NONE
from kernels.kernel import Kernel
from kernels.shapes import empty_outputs, sizes
from reference.op import Arguments, Array
from reference.sparse.neuron_masks import active_rows

NEURONS, CLOSED = 96, slice(16, 80)  # of which the whole pages are closed


def memory_of(packed: Array) -> Array:
    """A copy without the pages that hold nothing but closed rows."""
    page, row = mmap.PAGESIZE, packed.nbytes // NEURONS
    memory = mmap.mmap(-1, packed.nbytes)
    copy = np.frombuffer(memory, np.uint8)
    copy[...] = packed.reshape(-1)
    begin, end = -(-CLOSED.start * row // page) * page, CLOSED.stop * row // page * page
    assert end - begin > page
    place = ctypes.c_void_p(copy.ctypes.data + begin)
    assert ctypes.CDLL(None).mprotect(place, ctypes.c_size_t(end - begin), PROT_NONE) == 0
    return copy.reshape(packed.shape)


def killed_by(kernel: Kernel, inputs: Arguments) -> int:
    """The signal that a child dies of which runs the kernel on such memory; 0 if it does not."""
    assert kernel.pack
    outputs = empty_outputs(kernel.spec, sizes(kernel.spec, inputs, kernel.format), kernel.format)
    packed = memory_of(kernel.pack(inputs["weight"]))
    todo = [(share, block, kept) for share, block, kept in stages(kernel, inputs, outputs, packed)]
    for share, _, _ in todo:
        share.compile()
    child = os.fork()
    if child == 0:
        faulthandler.disable()  # which would tell of every fault
        for share, block, _ in todo:
            share(block, 0, 1)
        os._exit(0)
    return os.WTERMSIG(os.waitpid(child, 0)[1])


@each("sparse_linear", "sparse_axpy", formats=("F32", "Q4_0"), target="cpu")
@pytest.mark.parametrize("tokens", [1, 3])
def test_rows_that_nobody_needs_may_be_closed(kernel, tokens):
    """The kernel runs through where the rows of closed pages are of no active neuron, and dies of a
    closed page where one is: so it would have of reading there."""
    sizes = {"tokens": tokens, "hidden": 1024, "neurons": NEURONS, "active": 0, "held": NEURONS}
    inputs = inputs_of(kernel, **sizes) | {"slots": np.arange(NEURONS, dtype=np.int32)}
    mask = np.ones((tokens, NEURONS), np.uint8)
    for closed, deaths in ((0, {0}), (1, {signal.SIGSEGV, signal.SIGBUS})):
        mask[:, CLOSED] = closed
        rows, count = active_rows(mask)
        given = inputs | {"rows": rows, "count": count}
        if kernel.op == "sparse_linear":
            given["mask"] = mask
        assert killed_by(kernel, given) in deaths
