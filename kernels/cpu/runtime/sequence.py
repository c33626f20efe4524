"""Shares made of other shares: everything threads do between two barriers."""

from collections.abc import Sequence

import numpy as np

from kernels.cpu.isa.atomics import call_share
from kernels.cpu.runtime.share import Share, Words, arguments, pack_words, share

SIGNATURE = "calls: i64[calls 2] -> "
Entry = tuple[Share, Words]  # a share and its argument buffer


@share(SIGNATURE)
def in_turn(args, thread, n_threads):
    """This thread's share of every call in order, without barriers between."""
    (calls,) = arguments(args, SIGNATURE)
    for i in range(len(calls)):
        call_share(calls[i, 0], calls[i, 1], thread, n_threads)


@share(SIGNATURE)
def nothing(args, thread, n_threads):
    """A share that does no work, to measure the overhead of a program."""


def sequence(entries: Sequence[Entry]) -> tuple[Entry, Words]:
    """The entry that calls these in order, and its table of addresses; both and the entries'
    argument buffers must stay alive."""
    calls = np.array([(s.address, args.ctypes.data) for s, args in entries], np.int64)
    return (in_turn, pack_words(SIGNATURE, {"calls": calls})), calls
