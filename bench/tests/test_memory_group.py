"""A limit of memory holds the process that it is put on, and nobody else."""

import os
import subprocess
import sys

import pytest

from bench.offload import memory_group
from bench.offload.memory_group import MemoryGroup

MIB = 2**20
TAKES = "import sys; input(); taken = bytearray({n}); print(len(taken)); input()"


@pytest.fixture(name="group")
def _group():
    try:
        return MemoryGroup(64 * MIB)
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")


def ask(group, n_bytes):
    """A process in the group that takes so many bytes."""
    process = subprocess.Popen(
        [sys.executable, "-c", TAKES.format(n=n_bytes)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    group.add(process.pid)
    assert process.stdin
    process.stdin.write("\n")
    process.stdin.flush()
    return process


def test_who_keeps_to_it_lives(group):
    with group:
        process = ask(group, 8 * MIB)
        assert process.stdout
        assert process.stdout.readline().strip() == str(8 * MIB)
        process.communicate("\n", timeout=60)
        assert (process.returncode, group.killed) == (0, 0)


def test_who_takes_more_is_killed(group):
    """Its death is counted, and the group goes with it; this process is not in it."""
    with group:
        process = ask(group, 128 * MIB)
        process.communicate(timeout=60)
        assert process.returncode == -9
        assert group.killed == 1
        assert len(bytearray(128 * MIB))
        folder = group._folder
        assert folder.is_dir()
    assert not folder.exists()


def system(tmp_path, monkeypatch, mounts, own):
    """A machine with these mounts, at FOLDER, whose groups are only folders."""
    root = tmp_path / "cgroup"
    (tmp_path / "mounts").write_text(mounts.replace("FOLDER", str(root)))
    (tmp_path / "own").write_text(own)
    monkeypatch.setattr(memory_group, "MOUNTS", tmp_path / "mounts")
    monkeypatch.setattr(memory_group, "OWN", tmp_path / "own")
    return root


def test_version_two(tmp_path, monkeypatch):
    """A group is made where memory is handed on, which is above the process's own."""
    mounts = "cgroup2 FOLDER cgroup2 rw 0 0\n"
    root = system(tmp_path, monkeypatch, mounts, "0::/user/session\n")
    (root / "user" / "session").mkdir(parents=True)
    (root / "user" / "cgroup.subtree_control").write_text("cpu memory\n")
    (root / "user" / "session" / "cgroup.subtree_control").write_text("\n")
    group = MemoryGroup(5 * MIB)
    (made,) = (root / "user").glob("assay-*")
    assert (made / "memory.max").read_text() == f"{5 * MIB}\n"
    assert (made / "memory.swap.max").read_text() == "0\n"
    group.add(4321)
    assert (made / "cgroup.procs").read_text() == "4321\n"
    (made / "memory.events").write_text("low 0\noom 2\noom_kill 1\n")
    assert group.killed == 1


def test_version_one(tmp_path, monkeypatch):
    """A group is made within the process's own, or at the mount where a container hides that."""
    mounts = "cgroup FOLDER/cpu cgroup rw,cpu 0 0\ncgroup FOLDER/m cgroup rw,memory 0 0\n"
    root = system(tmp_path, monkeypatch, mounts, "4:memory:/mine\n3:cpu:/\n0::/\n")
    (root / "m" / "mine").mkdir(parents=True)
    MemoryGroup(5 * MIB)
    (made,) = (root / "m" / "mine").glob("assay-*")
    assert (made / "memory.limit_in_bytes").read_text() == f"{5 * MIB}\n"
    system(tmp_path, monkeypatch, mounts, "4:memory:/hidden\n")
    MemoryGroup(5 * MIB)
    assert len(list((root / "m").glob("assay-*"))) == 1


@pytest.mark.parametrize(
    ("mounts", "told"),
    [
        ("proc /proc proc rw 0 0\n", "no control groups of memory"),
        ("cgroup2 FOLDER cgroup2 rw 0 0\n", "hands on memory"),
    ],
)
def test_where_there_is_none(tmp_path, monkeypatch, mounts, told):
    """One plain line."""
    system(tmp_path, monkeypatch, mounts, f"0::/{os.getpid()}\n")
    with pytest.raises(OSError, match=told):
        MemoryGroup(5 * MIB)
