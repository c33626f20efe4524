"""As many meetings at the barrier as hours of decoding have, with threads late at random.

Decoding meets some ten thousand times a second: an hour is 3.6e7 meetings. By default a few
minutes' worth, with ASSAY_DEEP=1 some hours' worth.
"""

import random
import signal
import time

import pytest
from numpy.testing import assert_array_equal

from conformance.support.depth import DEEP
from conformance.support.team import LENGTH, Meetings, Visits
from kernels.cpu.team import Team

MEETINGS = {2: 5_000_000, 3: 300_000, 8: 100_000}
SCALE = 30 if DEEP else 1


@pytest.mark.parametrize("n_threads", MEETINGS)
def test_nobody_is_early_or_lost(n_threads):
    """Every thread comes to every meeting, and never to one before all have left the last."""
    meetings, runs = Meetings(n_threads, unrest=500), SCALE * MEETINGS[n_threads] // LENGTH
    with Team(n_threads) as team:
        for _ in range(runs):
            team.run(meetings.many)
    meetings.check(runs * LENGTH)


@pytest.mark.parametrize("n_threads", [2, 3, 8])
def test_programs_come_at_any_moment(n_threads):
    """Programs are run by all, whether workers spin, yield, are about to park or are parked."""
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
    """An exception from a signal's handler, wherever it strikes, leaves no program half run."""

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
