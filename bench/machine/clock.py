"""Time stamps between the entries of a program, taken inside the compiled code that runs it.

The clock is CLOCK_MONOTONIC, read through the C library. On Linux that is a counter read and a
multiplication in user space, some 25 ns; it needs no calibration, stands still for no core, and is
the clock of `time.perf_counter`, so both may be compared. The bare cycle counter would be cheaper
by a third and true only where it is invariant and its rate is known. What a stamp costs is
measured instead: `Stamped.bare`.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from kernels.cpu.isa.system_calls import nanoseconds
from kernels.cpu.runtime.share import Share, Words, arguments, pack_words, share
from kernels.cpu.runtime.team import Program, Team

Seconds = np.ndarray[Any, np.dtype[np.float64]]

SIGNATURE = "slot: i64 -> times: i64[slots]"


@share(SIGNATURE)
def stamp(args, thread, n_threads):
    """Record the time at which thread 0 arrives, after the preceding barrier."""
    slot, times = arguments(args, SIGNATURE)
    if thread == 0:
        times[slot] = nanoseconds()


class Stamped:
    """A program with a stamp before its first entry and after each: the same machine code, at the
    same addresses, run by the same team.

    The first entry has two stamps before it: workers may still be waking at the first one.
    """

    def __init__(self, entries: Sequence[tuple[Share, Words]]) -> None:
        self.times = np.zeros(len(entries) + 2, np.int64)
        stamps = [
            (stamp, pack_words(SIGNATURE, {"slot": slot, "times": self.times}))
            for slot in range(len(self.times))
        ]
        followed = chain.from_iterable(zip(entries, stamps[2:], strict=True))
        self._program = Program([*stamps[:2], *followed])
        self._bare = Program(stamps)

    def run(self, team: Team) -> Seconds:
        """Seconds of every entry: its work, its barrier and one stamp with its own barrier."""
        return self._laps(team, self._program)

    def bare(self, team: Team) -> Seconds:
        """Seconds of as many stamps with nothing between them."""
        return self._laps(team, self._bare)

    def _laps(self, team: Team, program: Program) -> Seconds:
        team.run(program)
        return np.diff(self.times[1:]) * 1e-9
