"""The thread team: every share runs once, in order; threads are gone after close, pinned to cores,
and at most as many as this process has cores."""

import gc
import os
import sys
import threading
import time

import numpy as np
import pytest

from conformance.support.child import run
from conformance.support.team import LONG, Visits, long, wait_until
from kernels.cpu.runtime import cores
from kernels.cpu.runtime.cores import allowed_cores
from kernels.cpu.runtime.share import pack_words
from kernels.cpu.runtime.team import PARKED, Program, Team


def workers() -> int:
    return threading.active_count()


@pytest.mark.parametrize("n_threads", [1, 2, 3, 8])
def test_every_thread_visits_every_entry_once_and_in_order(n_threads):
    """No share is omitted, repeated, or begun before all have finished the one before."""
    seen = Visits(n_threads)
    with Team(n_threads) as team:
        for _ in range(30):
            team.run(seen.program)
    seen.check(30)


def test_idle_workers_sleep_and_wake():
    """Idle workers take no CPU time, and the next program wakes them all."""
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
    """Running a program while another runs is an error, and runs nothing."""
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
    """After close no worker is left, closing again does nothing, and running is an error."""
    before = workers()
    team, seen = Team(3), Visits(3)
    assert workers() == before + 2
    team.run(seen.program)
    team.close()
    team.close()
    assert workers() == before
    with pytest.raises(RuntimeError, match="this team of threads has been closed"):
        team.run(seen.program)


def test_garbage_collected_teams_leave_no_threads():
    """Forty teams garbage-collected without a close, run or not, leave none."""
    before, seen = workers(), Visits(3)
    for i in range(40):
        team = Team(3)
        if i % 2:
            team.run(seen.program)
        del team
    gc.collect()
    wait_until(lambda: workers() == before)
    seen.check(20)


FORKED = """
import os, sys, time
from conformance.support.team import Visits
from kernels.cpu.runtime.team import Team
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


def test_a_forked_child_gets_an_error():
    """Threads do not survive fork: the child gets a plain error and exits, the parent continues."""
    done = run(sys.executable, "-W", "ignore", "-c", FORKED)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("n_threads", [0, -1, 257])
def test_invalid_sizes_are_refused(n_threads):
    """A team has 1 to 256 threads, and the message has the requested number."""
    with pytest.raises(ValueError, match=f"want 1 to 256, got {n_threads}"):
        Team(n_threads)


pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="the system cannot pin threads"
)
CORES = allowed_cores()


def test_each_thread_has_a_core_of_its_own():
    """Workers always; the caller while its program runs, as seen from another thread."""
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


def test_hyper_threads_are_used_last(tmp_path, monkeypatch):
    """All physical cores have a thread before any has a second one."""
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
    """Without the system call, requesting it is one plain error."""
    monkeypatch.delattr(os, "sched_setaffinity")
    with pytest.raises(OSError, match="cannot keep a thread to a core"):
        Team(1, pinned=True)
    Team(1).close()


SECOND, FIRST = "0::/service/engine\n", "4:cpu,cpuacct:/service\n2:memory:/service\n0::/\n"
OWN, AROUND = "service/engine/cpu.max", "service/cpu.max"
QUOTA, PERIOD = "cpu/service/cpu.cfs_quota_us", "cpu/service/cpu.cfs_period_us"
QUOTAS = {
    "no files": (SECOND, {}, np.inf),
    "none": (SECOND, {OWN: "max 100000"}, np.inf),
    "own": (SECOND, {OWN: "150000 100000"}, 1.5),
    "that of a group around it": (SECOND, {OWN: "400000 100000", AROUND: "50000 100000"}, 0.5),
    "a container's root": ("0::/\n", {"cpu.max": "200000 100000"}, 2.0),
    "damaged": ("0::/\n", {"cpu.max": "nonsense"}, np.inf),
    "the first version": (FIRST, {QUOTA: "300000", PERIOD: "100000"}, 3.0),
    "the first version, none": (FIRST, {QUOTA: "-1", PERIOD: "100000"}, np.inf),
}


@pytest.mark.parametrize(("own", "files", "expected"), QUOTAS.values(), ids=QUOTAS)
def test_cgroup_quotas_are_detected(monkeypatch, tmp_path, own, files, expected):
    """Among all cgroups of this process, in either version; the smallest counts."""
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(cores, "OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(cores, "GROUPS", tmp_path)
    assert cores.quota() == expected


@pytest.mark.parametrize(("quota", "threads"), [(0.2, 1), (1.0, 1), (1.5, 2), (2.0, 2), (9, 4)])
def test_threads_are_no_more_than_the_quota(monkeypatch, quota, threads):
    """A fraction of a core counts as one; a larger quota does not limit four cores."""
    psutil = pytest.importorskip("psutil")
    monkeypatch.setattr(psutil, "cpu_count", lambda **_: 4)
    monkeypatch.setattr(cores, "allowed_cores", lambda: [0, 1, 2, 3])
    monkeypatch.setattr(cores, "quota", lambda: quota)
    assert cores.physical_cores() == threads


def test_cpu_affinity_limits_threads(monkeypatch):
    """CPU affinity limits the number of threads."""
    monkeypatch.setattr(cores, "allowed_cores", lambda: [3])
    assert cores.physical_cores() == 1
