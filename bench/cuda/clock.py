"""How long a GPU takes, by its own events, and contenders that are timed so.

What is timed stands in the stream behind a kernel that waits, so that the host has launched all of
it before the first begins: the host's own time is not in it. A stream holds only so many launches,
and the host waits where it is full: then fewer repetitions are timed together.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from bench.race.experiment import Contender, first_line, timed
from bench.race.results import Measurement
from bench.race.timing import Rule
from kernels.cuda.runtime.device import DeviceError
from kernels.cuda.runtime.gpu import Gpu

Enqueue = Callable[[int], None]  # launches the i-th repetition and does not wait

WAIT = """
extern "C" __global__ void wait(long long cycles) {
  const long long begin = clock64();
  while (clock64() - begin < cycles) {}
}"""
FIRST, LONGEST = 200_000, 200_000_000  # cycles
AWAKE = 100_000_000  # cycles
SETTLED = 3  # launches before anything counts
SAMPLE = 5e-4  # seconds that a sample should last
MOST = 64  # repetitions of one
RULE = Rule(least=7, error=0.005, cap_seconds=0.8, most=200)  # of a race


class Clock:
    """Times work on a GPU's stream."""

    def __init__(self, gpu: Gpu) -> None:
        import cupy

        self._events: Any = cupy.cuda
        self._wait = cupy.RawKernel(WAIT, "wait")
        self._gpu, self._cycles = gpu, FIRST

    def wake(self) -> None:
        """A GPU that had nothing to do clocks low at first."""
        with self._gpu.stream:
            self._wait((1,), (1,), (np.int64(AWAKE),))
        self._gpu.wait()

    def seconds(self, enqueue: Enqueue, repeats: int) -> float:
        """Of one repetition among so many, or as many as the stream holds."""
        begin, end = (self._events.Event() for _ in range(2))
        while True:
            with self._gpu.stream:
                self._wait((1,), (1,), (np.int64(self._cycles),))
            begin.record(self._gpu.stream)
            for i in range(repeats):
                enqueue(i)
            end.record(self._gpu.stream)
            late = begin.done  # the wait was over before all was launched
            self._gpu.wait()
            if not late:
                return float(self._events.get_elapsed_time(begin, end)) / 1e3 / repeats
            self._cycles *= 2
            if self._cycles > LONGEST:
                self._cycles = FIRST
                if repeats == 1:
                    raise DeviceError("a launch takes the host longer than any wait")
                repeats = -(-repeats // 4)

    def repeats(self, enqueue: Enqueue) -> int:
        """How many make a sample."""
        for i in range(SETTLED):
            enqueue(i)
        self._gpu.wait()
        return max(1, min(MOST, round(SAMPLE / self.seconds(enqueue, SETTLED))))


def contender(clock: Clock, row: Measurement, enqueue: Enqueue | str) -> Contender:
    """One who launches a case and does not wait. Absent is who fails, be it at the first try or
    later; `enqueue` may be the reason already."""
    if isinstance(enqueue, str):
        return Contender(row, absent=enqueue)
    try:
        repeats = clock.repeats(enqueue)
    except Exception as error:  # peers raise what they like
        return Contender(row, absent=first_line(error))
    return Contender(row, timed(partial(clock.seconds, enqueue, repeats)), excused=Exception)
