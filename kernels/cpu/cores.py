"""Cores, by the numbers the system gives them, and threads that keep to one."""

import os
from pathlib import Path
from types import TracebackType

CPUS = Path("/sys/devices/system/cpu")


def allowed_cores() -> list[int]:
    """The cores that this process may run on, in order; a core's hyper-threads count as such."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _rank(core: int) -> int:
    """Which of its physical core's hyper-threads it is, from 0 on; 0 where nobody says."""
    try:
        told = (CPUS / f"cpu{core}/topology/thread_siblings_list").read_text()
    except OSError:
        return 0
    spans = [[int(end) for end in span.split("-")] for span in told.split(",")]
    return sorted(n for s in spans for n in range(s[0], s[-1] + 1)).index(core)


def physical_cores() -> int:
    """Cores this process may run on, hyper-threads not counted."""
    import psutil  # a bare machine whose GPU is checked may have none

    allowed = len(allowed_cores())
    return max(1, min(int(psutil.cpu_count(logical=False) or allowed), allowed))


def cores_to_pin(n_threads: int) -> list[int]:
    """One core for each thread, no two on one physical core while there are others; OSError or
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
    """While inside, this thread keeps to one core; afterwards it may be where it was allowed to be
    when this was made."""

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
