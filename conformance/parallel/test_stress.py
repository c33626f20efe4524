"""As many barriers as in hours of decoding, with threads late at random.

Decoding passes some ten thousand barriers a second: an hour is 3.6e7. By default a few minutes'
worth, with ASSAY_DEEP=1 some hours' worth.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from conformance.support.child import started
from conformance.support.depth import DEEP
from conformance.support.team import LENGTH, LONG, Meetings, Visits, long, wait_until
from kernels.cpu.runtime.cores import allowed_cores
from kernels.cpu.runtime.share import pack_words
from kernels.cpu.runtime.team import LINE, OWN, PARKED, SLEEP, WARY, Program, Team

MEETINGS = {2: 5_000_000, 3: 300_000, 8: 100_000}
SCALE = 30 if DEEP else 1


@pytest.mark.parametrize("n_threads", MEETINGS)
def test_barriers_hold_with_late_threads(n_threads):
    """Every thread reaches every barrier, and never one before all have left the last."""
    meetings, runs = Meetings(n_threads, unrest=500), SCALE * MEETINGS[n_threads] // LENGTH
    with Team(n_threads) as team:
        for _ in range(runs):
            team.run(meetings.many)
    meetings.check(runs * LENGTH)


@pytest.mark.parametrize("n_threads", [2, 3, 8])
def test_programs_start_at_any_moment(n_threads):
    """All threads run each program, whether workers spin, yield, or are parked."""
    meetings, rng, runs = Meetings(n_threads, unrest=10), random.Random(1), 2000 * SCALE
    with Team(n_threads) as team:
        for _ in range(runs):
            team.run(meetings.one)
            if rng.random() < 0.05:
                time.sleep(rng.choice([1e-5, 1e-4, 1e-3, 1e-2]))
    meetings.check(runs)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no interval timers")
@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_interrupts_at_any_moment(n_threads):
    """An exception from a signal handler, at any moment, leaves no program half run."""

    def ring(number, frame):
        raise KeyboardInterrupt

    seen, rng, struck = Visits(n_threads), random.Random(2), 0
    before, deadline = signal.signal(signal.SIGALRM, ring), time.monotonic() + 120 * SCALE
    try:
        with Team(n_threads) as team:
            for _ in range(500 * SCALE):
                try:
                    signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, 3e-4))
                    while time.monotonic() < deadline:
                        team.run(seen.program)
                        if rng.random() < 0.002:
                            time.sleep(0.01)
                except KeyboardInterrupt:
                    struck += 1
                assert (seen.visits == seen.visits[0, 0]).all()
                assert not team._running.locked()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert struck == 500 * SCALE
    assert_array_equal(seen.early, 0)


CORES = allowed_cores()[:2]
ENTRIES, TURNS = 50, 8000  # of a program: some 10 us an entry
BUSY = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
print(flush=True)
end = time.monotonic() + 60
while time.monotonic() < end:
    pass
"""


@contextmanager
def busy_cores(busy: Sequence[int] = CORES) -> Iterator[None]:
    """This process is pinned to two cores; on these another program runs without a pause."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, CORES)
    with ExitStack() as stack:
        stack.callback(os.sched_setaffinity, 0, before)
        for core in busy:
            other = stack.enter_context(started(sys.executable, "-c", BUSY, core))
            other.stdout.readline()
        yield


def runs_a_second(team: Team, seconds: float = 0.5) -> float:
    """Of a program whose every entry divides its work among the threads."""
    n_threads = team.n_threads
    block = pack_words(LONG, {"turns": TURNS // n_threads, "out": np.zeros(n_threads)})
    program, runs, started = Program([(long, block)] * ENTRIES), 0, time.monotonic()
    while (elapsed := time.monotonic() - started) < seconds:
        team.run(program)
        runs += 1
    return runs / elapsed


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system cannot pin programs")
@pytest.mark.skipif(len(CORES) < 2, reason="there is one core")
@pytest.mark.parametrize("busy", [1, 2])
def test_two_threads_do_not_collapse_beside_other_programs(busy):
    """With other programs on one or both of two cores a program of many short entries takes at most
    1.6 times as long as on one thread next to them: a thread with a core does the other's parts."""
    with busy_cores(CORES[-busy:]), Team(1) as one, Team(2) as two:
        found = [(runs_a_second(one), runs_a_second(two)) for _ in range(5)]
    alone, together = np.median(found, axis=0)
    assert together > alone / 1.6, found


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system cannot pin programs")
@pytest.mark.parametrize("n_threads", [2, 3, 8])
def test_barriers_hold_beside_other_programs(n_threads):
    """Threads that lose their cores at any moment do every part once, and none too early."""
    meetings, runs = Meetings(n_threads, unrest=100), 40
    with busy_cores(), Team(n_threads) as team:
        for _ in range(runs):
            team.run(meetings.one)
            team.run(meetings.many)
    meetings.check(runs * (LENGTH + 1))


@pytest.mark.parametrize("n_threads", [2, 3, 8])
def test_sleeping_threads_are_woken(n_threads):
    """If all waiting threads sleep, none is early or lost, or sleeps for the maximum time."""
    meetings, runs = Meetings(n_threads, unrest=10), 20_000 // n_threads
    with Team(n_threads) as team:
        team.run(meetings.one)
        wait_until(lambda: team._state.sync[PARKED] == n_threads - 1)
        wary, started = team._state.sync[OWN + WARY :: LINE], time.monotonic()
        wary[:] = 10**9
        for _ in range(runs):
            team.run(meetings.one)
        team.run(meetings.many)
        slept, seconds = int((10**9 - wary).max()), time.monotonic() - started
    meetings.check(1 + runs + LENGTH)
    assert runs / 100 < slept < 10 * runs
    assert seconds < slept * SLEEP / 1e9 / 4
