"""A memory limit enforced by the system: a control group (cgroup, version 1 or 2) for a process,
page cache included."""

import os
import time
from contextlib import suppress
from itertools import count
from pathlib import Path

from engine.closeable import Closeable

MOUNTS, OWN = Path("/proc/self/mounts"), Path("/proc/self/cgroup")
PATIENCE = 5.0  # seconds for a group to notice that its processes have ended
_NUMBERS = count()


class MemoryGroup(Closeable):
    """A group below this process's own whose processes share `limit` bytes; a context manager that
    removes it once they have ended. Raises OSError where none can be made."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        parent, first = _parent()
        self._folder = parent / f"assay-{os.getpid()}-{next(_NUMBERS)}"
        self._folder.mkdir()
        try:
            if first:
                self._write("memory.limit_in_bytes", limit)
                self._write("memory.memsw.limit_in_bytes", limit, optional=True)
                self._deaths = self._folder / "memory.oom_control"
            else:
                self._write("memory.max", limit)
                self._write("memory.swap.max", 0, optional=True)
                self._deaths = self._folder / "memory.events"
        except BaseException:
            self._folder.rmdir()
            raise

    def add(self, pid: int) -> None:
        """Add a process; its earlier use is charged elsewhere."""
        self._write("cgroup.procs", pid)

    @property
    def killed(self) -> int:
        """How many of its processes were killed by the OOM killer."""
        words = self._deaths.read_text().split()
        return int(words[words.index("oom_kill") + 1])

    def close(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self._folder.rmdir()
            except FileNotFoundError:
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def _write(self, name: str, value: int, optional: bool = False) -> None:
        with suppress(*[FileNotFoundError] if optional else []):
            (self._folder / name).write_text(f"{value}\n")


def _parent() -> tuple[Path, bool]:
    """Where a group can be created, and whether groups are of version 1. Below this process's own
    group, so that its limits still apply; version 2 allows that only where the memory controller is
    delegated, which is further up."""
    mounts = [line.split() for line in MOUNTS.read_text().splitlines()]
    own = {name: path for _, name, path in (w.split(":", 2) for w in OWN.read_text().splitlines())}
    for _, where, kind, options, *_ in mounts:
        if kind == "cgroup" and "memory" in options.split(","):
            path = next(p for names, p in own.items() if "memory" in names.split(","))
            return _below(Path(where), path), True
    for _, where, kind, *_ in mounts:
        if kind == "cgroup2":
            folder = _below(Path(where), own.get("", "/"))
            while not _hands_on(folder):
                if folder == Path(where):
                    raise OSError("no control group of this process hands on memory")
                folder = folder.parent
            return folder, False
    raise OSError("this system has no control groups of memory")


def _below(mount: Path, path: str) -> Path:
    """A group's folder; a container may see its own group as the mount itself."""
    folder = mount / path.lstrip("/")
    return folder if folder.is_dir() else mount


def _hands_on(folder: Path) -> bool:
    control = folder / "cgroup.subtree_control"
    return control.exists() and "memory" in control.read_text().split()
