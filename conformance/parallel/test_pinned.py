"""Pinned threads: one core each, and the caller's own again afterwards."""

import os
import threading

import numpy as np
import pytest

from conformance.support.team import LONG, Visits, long, wait_until
from kernels.cpu import cores
from kernels.cpu.cores import allowed_cores
from kernels.cpu.share import pack_words
from kernels.cpu.team import Program, Team

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="the system cannot pin threads"
)
CORES = allowed_cores()


def test_each_thread_has_a_core_of_its_own():
    """Workers always; the caller while its program runs, as another thread sees it."""
    before = os.sched_getaffinity(0)
    known = set(threading.enumerate())
    program = Program([(long, pack_words(LONG, {"turns": 10**8, "out": np.zeros(len(CORES))}))])
    caller, met = threading.main_thread().native_id, []

    def watch():
        wait_until(lambda: os.sched_getaffinity(caller) == {CORES[0]})
        met.append(True)

    with Team(len(CORES), pinned=True) as team:
        workers = set(threading.enumerate()) - known
        assert os.sched_getaffinity(0) == before
        assert {frozenset(os.sched_getaffinity(w.native_id)) for w in workers} == {
            frozenset({core}) for core in CORES[1:]
        }
        watcher = threading.Thread(target=watch)
        watcher.start()
        team.run(program)
        watcher.join()
    assert met
    assert os.sched_getaffinity(0) == before


def test_pinned_threads_run_programs():
    """A pinned team does what any team does."""
    seen = Visits(len(CORES))
    with Team(len(CORES), pinned=True) as team:
        for _ in range(30):
            team.run(seen.program)
    seen.check(30)


def test_hyper_threads_come_last(tmp_path, monkeypatch):
    """As many physical cores as there are, before any second thread of one."""
    for core, told in enumerate(["0,2", "1,3", "0,2", "1,3", "4-5", "4-5"]):
        folder = tmp_path / f"cpu{core}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(told + "\n")
    monkeypatch.setattr(cores, "CPUS", tmp_path)
    monkeypatch.setattr(cores, "allowed_cores", lambda: [0, 1, 2, 4, 5, 9])
    assert cores.cores_to_pin(6) == [0, 1, 4, 9, 2, 5]


def test_more_threads_than_cores_are_refused():
    """There is no core for each, and the message has both numbers."""
    wanted = len(CORES) + 1
    with pytest.raises(ValueError, match=f"{wanted} want a core each, .* may use {len(CORES)}"):
        Team(wanted, pinned=True)


def test_systems_that_cannot_pin_say_so(monkeypatch):
    """Where the system has no such call, asking for it is one plain error."""
    monkeypatch.delattr(os, "sched_setaffinity")
    with pytest.raises(OSError, match="cannot keep a thread to a core"):
        Team(1, pinned=True)
    Team(1).close()
