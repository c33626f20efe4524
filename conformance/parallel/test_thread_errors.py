"""Errors in a share reach the caller, and an interrupt is delayed to the program's end."""

import os
import signal
import sys
import threading
import time

import numba
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from conformance.support.child import output_of, run
from conformance.support.program import DEAF
from conformance.support.rooms import ROOT
from conformance.support.team import FAIL, Visits, fail, wait_until
from kernels.cpu.runtime.share import PROTOTYPE, pack_words
from kernels.cpu.runtime.team import PARKED, Program, Team

each_thread = pytest.mark.parametrize(("n_threads", "who"), [(1, 0), (2, 0), (2, 1), (3, 2)])


class Failing:
    """A program whose first entry fails on one thread, or on all (-1)."""

    def __init__(self, n_threads: int, who: int) -> None:
        self.runs = np.zeros(n_threads, np.int64)
        entry = fail, pack_words(FAIL, {"who": who, "runs": self.runs})
        rest = fail, pack_words(FAIL, {"who": n_threads, "runs": self.runs})
        self.program = Program([entry, rest])


@pytest.fixture(autouse=True)
def unraisable(monkeypatch):
    """Exceptions that reached no caller."""
    found = []
    monkeypatch.setattr(sys, "unraisablehook", found.append)
    return found


@each_thread
def test_exceptions_of_a_share_reach_the_caller(n_threads, who, unraisable):
    """They keep their type; the rest of the program runs, and the team remains usable."""
    failing, seen = Failing(n_threads, who), Visits(n_threads)
    with Team(n_threads) as team:
        for times in (1, 2, 3):
            with pytest.raises(ValueError, match="told to fail"):
                team.run(failing.program)
            assert failing.runs.sum() == times * (2 * n_threads - 1)
            team.run(seen.program)
    seen.check(3)
    assert not unraisable


def test_one_of_several_exceptions_is_raised():
    """Where every thread raises, the caller gets one exception, once."""
    failing, seen = Failing(3, -1), Visits(3)
    with Team(3) as team:
        with pytest.raises(ValueError, match="told to fail"):
            team.run(failing.program)
        assert_array_equal(failing.runs, 1)
        team.run(seen.program)
    seen.check(1)


def test_exceptions_do_not_cross_teams(unraisable):
    """Two teams at once: an exception in one's share does not affect the other."""
    failing, seen = Failing(2, 1), Visits(2)
    with Team(2) as good, Team(2) as bad:
        worker = threading.Thread(target=lambda: [good.run(seen.program) for _ in range(200)])
        worker.start()
        for _ in range(50):
            with pytest.raises(ValueError, match="told to fail"):
                bad.run(failing.program)
        worker.join()
    seen.check(200)
    assert not unraisable


def test_other_exceptions_go_to_the_previous_hook(unraisable):
    """Exceptions of other callbacks, and of destructors, go to the previous hook."""

    def raises(args, thread, n_threads):
        raise ValueError("not of the team")

    class Stubborn:
        def __del__(self):
            raise ValueError("not of the team")

    callback = numba.cfunc("void(uint64, int64, int64)")(raises)
    seen = Visits(2)
    with Team(2) as team:
        team.run(seen.program)
        PROTOTYPE(callback.address)(0, 0, 1)
        Stubborn()
        team.run(seen.program)
    seen.check(2)
    assert [str(args.exc_value) for args in unraisable] == ["not of the team"] * 2


INTERRUPTED = """
import os, signal, threading, time
import numpy as np
from conformance.support.team import LONG, long
from conformance.support.team import Visits
from kernels.cpu.runtime.share import pack_words
from kernels.cpu.runtime.team import Program, Team

done, seen = np.zeros(2), Visits(2)

def program(turns):
    return Program([(long, pack_words(LONG, {"turns": turns, "out": done}))])

with Team(2) as team:
    team.run(program(1))
    started = time.perf_counter()
    team.run(program(10**7))
    turns = int(10**7 / (time.perf_counter() - started))  # about a second
    done[:] = 0
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    started = time.perf_counter()
    try:
        team.run(program(turns))
    except KeyboardInterrupt:
        print("interrupted", *(done > 1), time.perf_counter() - started > 0.3)
    team.run(seen.program)
seen.check(1)
print("went on")
"""


def test_ctrl_c_is_raised_at_the_programs_end():
    """It is raised when all threads are done, and the team remains usable."""
    assert output_of(INTERRUPTED).splitlines() == ["interrupted True True True", "went on"]


class Interrupting:
    """A worker's gate that lets signals through while the caller is about to open it."""

    def __init__(self, gate, signals):
        self.gate, self.signals = gate, signals

    def locked(self):
        if self.signals:
            self.signals -= 1
            raise KeyboardInterrupt
        return self.gate.locked()

    def release(self):
        self.gate.release()

    def acquire(self):
        return self.gate.acquire()


@pytest.mark.parametrize("signals", [1, 2])
def test_an_interrupt_while_workers_are_woken(signals):
    """A program that some threads have started is completed by all, once, before the interrupt is
    raised. A second interrupt before that returns at once, and the next run completes it first."""
    seen, other = Visits(3), Visits(3)
    with Team(3) as team:
        team.run(seen.program)
        wait_until(lambda: team._state.sync[PARKED] == 2)
        team._state.gates[1] = Interrupting(team._state.gates[1], signals)
        with pytest.raises(KeyboardInterrupt):
            team.run(seen.program)
        if signals == 1:
            seen.check(2)
        team.run(other.program)
    seen.check(2)
    other.check(1)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signals to threads")
def test_ctrl_c_ends_a_loop_of_programs():
    """A signal delivered to a worker is handled by the caller's next Python code."""
    seen, deadline = Visits(2), time.monotonic() + 20
    others = set(threading.enumerate())
    with Team(2) as team:
        team.run(seen.program)
        (worker,) = set(threading.enumerate()) - others
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            signal.pthread_kill(worker.ident, signal.SIGINT)
            while time.monotonic() < deadline:
                team.run(seen.program)
    assert (seen.visits == seen.visits[0, 0]).all()
    assert_array_equal(seen.early, 0)


@pytest.mark.skipif(os.name != "posix", reason="no signals to ignore")
def test_ctrl_c_works_where_sigint_was_ignored():
    """Tests started by cron, nohup or `make test &` heed Ctrl-C."""
    test = f"{__file__}::{test_ctrl_c_ends_a_loop_of_programs.__name__}"
    program = [*DEAF, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    done = run(*program, cwd=ROOT)
    assert done.returncode == 0, done.stdout
