"""CPU cores by the system's numbers, and pinning of threads."""

import os
from collections.abc import Iterator
from contextlib import suppress
from math import ceil
from pathlib import Path
from types import TracebackType

CPUS = Path("/sys/devices/system/cpu")
GROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def allowed_cores() -> list[int]:
    """The cores that this process may run on, in order; hyper-threads count separately."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _rank(core: int) -> int:
    """Which hyper-thread of its physical core it is, from 0; 0 if unknown."""
    try:
        told = (CPUS / f"cpu{core}/topology/thread_siblings_list").read_text()
    except OSError:
        return 0
    spans = [[int(end) for end in span.split("-")] for span in told.split(",")]
    return sorted(n for s in spans for n in range(s[0], s[-1] + 1)).index(core)


def _quotas() -> Iterator[float]:
    """The CPU quotas, in cores, of the control groups of this process, where limited: cpu.max in
    version 2, two files in version 1."""
    for line in OWN_GROUPS.read_text().splitlines():
        _, names, path = line.split(":", 2)
        if names and "cpu" not in names.split(","):
            continue
        root = GROUPS / "cpu" if names else GROUPS
        for group in (own := root / path.lstrip("/"), *own.parents):
            if not group.is_relative_to(root):
                break
            with suppress(OSError, ValueError, ZeroDivisionError):
                if names:
                    quota = int((group / "cpu.cfs_quota_us").read_text())
                    period = int((group / "cpu.cfs_period_us").read_text())
                else:
                    quota, period = map(int, (group / "cpu.max").read_text().split())
                if quota > 0:
                    yield quota / period


def quota() -> float:
    """The CPU quota of this process in cores, as set for containers; infinity if unlimited."""
    try:
        return min(_quotas(), default=float("inf"))
    except (OSError, ValueError):
        return float("inf")


def physical_cores() -> int:
    """The number of physical cores that this process may use: those it may run on, limited by the
    quota rounded up."""
    import psutil  # a bare machine whose GPU is checked may have none

    allowed = len(allowed_cores())
    cores = min(int(psutil.cpu_count(logical=False) or allowed), allowed)
    return max(1, ceil(min(cores, quota())))


def cores_to_pin(n_threads: int) -> list[int]:
    """One core for each thread, distinct physical ones as long as there are any; OSError or
    ValueError where that cannot be."""
    if not hasattr(os, "sched_setaffinity"):
        raise OSError("pinned threads: this system cannot keep a thread to a core")
    cores = sorted(allowed_cores(), key=lambda core: (_rank(core), core))
    if len(cores) < n_threads:
        raise ValueError(
            f"pinned threads: {n_threads} want a core each, this process may use {len(cores)}"
        )
    return cores[:n_threads]


class Pinned:
    """Context in which this thread is pinned to a core; afterwards it may run where it was allowed
    to at construction."""

    def __init__(self, core: int) -> None:
        self._core, self._before = core, os.sched_getaffinity(0)

    def __enter__(self) -> None:
        os.sched_setaffinity(0, {self._core})

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.sched_setaffinity(0, self._before)
