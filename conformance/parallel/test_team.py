"""The team of threads: every share once, in order, and gone when let go."""

import gc
import signal
import sys
import threading
import time

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from conformance.support.child import run
from conformance.support.team import LONG, Visits, long, wait_until
from kernels.call import stages
from kernels.cpu.share import pack_words
from kernels.cpu.team import PARKED, Program, Team
from kernels.table import find
from reference.table import OPS

every_size = pytest.mark.parametrize("n_threads", [1, 2, 3, 8])


def workers() -> int:
    return threading.active_count()


@every_size
def test_every_thread_visits_every_entry_once_and_in_order(n_threads):
    """No share is left out, done twice, or begun before all have finished the one before."""
    seen = Visits(n_threads)
    with Team(n_threads) as team:
        for _ in range(30):
            team.run(seen.program)
    seen.check(30)


def test_more_threads_than_cores_still_get_on():
    """Eight threads on fewer cores take turns: ten thousand meetings within seconds."""
    seen = Visits(8)
    started = time.monotonic()
    with Team(8) as team:
        for _ in range(25):
            team.run(seen.program)
    seen.check(25)
    assert time.monotonic() - started < 30


@every_size
def test_teams_of_any_size_give_the_same_bits(n_threads):
    """A linear layer on quantised activations, in two stages, is bit-equal on any team."""
    kernel, op = find("linear/cpu/generic/Q4_0"), OPS["linear"]
    inputs = op.make(op.case({"tokens": 5, "hidden": 256, "out": 127}, format="Q4_0"))
    results = []
    for size in (1, n_threads):
        out = np.full((5, 127), np.nan, np.float32)
        bound = stages(kernel, dict(inputs), {"out": out})
        with Team(size) as team:
            team.run(Program([(share, block) for share, block, _ in bound]))
        results.append(out)
    assert_array_equal(results[0], results[1])


def test_idle_workers_sleep_and_wake():
    """Workers left alone cost no time, and the next program finds them all."""
    seen = Visits(3)
    with Team(3) as team:
        for runs in (1, 2):
            team.run(seen.program)
            seen.check(runs)
            wait_until(lambda: team._state.sync[PARKED] == 2)
            busy = time.process_time()
            time.sleep(0.2)
            assert time.process_time() - busy < 0.1
        team.run(seen.program)
    seen.check(3)


def test_one_program_at_a_time():
    """Who wants to run a program while another runs is told so, and nothing of it is run."""
    out, seen = np.zeros(2), Visits(2)
    busy = Program([(long, pack_words(LONG, {"turns": 10**8, "out": out}))])
    with Team(2) as team:
        team.run(seen.program)
        other = threading.Thread(target=team.run, args=(busy,))
        other.start()
        wait_until(team._running.locked)
        with pytest.raises(RuntimeError, match="running another program"):
            team.run(seen.program)
        other.join()
        seen.check(1)
        team.run(seen.program)
    seen.check(2)
    assert (out > 0).all()


def test_an_empty_program_does_nothing():
    """A program without entries returns at once, on one thread and on three."""
    for n_threads in (1, 3):
        with Team(n_threads) as team:
            team.run(Program([]))


def test_closing_ends_the_threads():
    """After close no worker is left, closing again is nothing, and running says what happened."""
    before = workers()
    team, seen = Team(3), Visits(3)
    assert workers() == before + 2
    team.run(seen.program)
    team.close()
    team.close()
    assert workers() == before
    with pytest.raises(RuntimeError, match="this team of threads has been closed"):
        team.run(seen.program)


def test_teams_that_are_dropped_leave_no_threads():
    """Forty teams forgotten without a close, run or not, are all gone afterwards."""
    before, seen = workers(), Visits(3)
    for i in range(40):
        team = Team(3)
        if i % 2:
            team.run(seen.program)
        del team
    gc.collect()
    wait_until(lambda: workers() == before)
    seen.check(20)


def test_an_interrupt_between_programs_does_no_harm():
    """After Ctrl-C between two runs the team still works."""
    seen = Visits(2)
    with Team(2) as team:
        team.run(seen.program)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        team.run(seen.program)
    seen.check(2)


FORKED = """
import os, sys, time
from conformance.support.team import Visits
from kernels.cpu.team import Team
seen, team = Visits(3), Team(3)
team.run(seen.program)
for i in range(20):  # now and then while workers spin, now and then while they sleep
    leave = os._exit if i % 10 else sys.exit  # which takes long: all of Python ends
    child = os.fork()
    if child == 0:
        try:
            team.run(seen.program)
        except RuntimeError as error:
            leave(0 if "does not survive fork" in str(error) else 3)
        leave(4)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
    time.sleep(0.01)
team.run(seen.program)
seen.check(2)
"""


def test_a_forked_child_is_told_to_load_again():
    """Threads do not survive fork: the child gets a plain error and exits, the parent goes on."""
    done = run(sys.executable, "-W", "ignore", "-c", FORKED)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("n_threads", [0, -1, 257])
def test_impossible_sizes_are_refused(n_threads):
    """A team has 1 to 256 threads, and the message has the number that was asked for."""
    with pytest.raises(ValueError, match=f"want 1 to 256, got {n_threads}"):
        Team(n_threads)
