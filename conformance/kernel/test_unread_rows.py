"""Rows of inactive neurons are never read: protecting their memory changes nothing. (The emulated
GPU detects reads of missing rows by slots in the cases.)"""

import ctypes
import faulthandler
import mmap
import os
import signal

import numpy as np
import pytest

from conformance.support.machine_kernels import each, inputs_of
from kernels.call import stages
from kernels.guard import PROT_NONE
from kernels.kernel import Kernel
from kernels.shapes import empty_outputs, sizes
from reference.op import Arguments, Array
from reference.sparse.neuron_masks import active_rows

NEURONS, CLOSED = 96, slice(16, 80)  # of which the whole pages are closed


def memory_of(packed: Array) -> Array:
    """A copy without access to the pages that hold only closed rows."""
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
    """The signal that kills a child which runs the kernel on such memory; 0 if none does."""
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
def test_inactive_rows_are_never_read(kernel, tokens):
    """The kernel succeeds if closed pages hold only inactive neurons' rows, and dies if one holds
    an active one's: so it would have died of reading others."""
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
