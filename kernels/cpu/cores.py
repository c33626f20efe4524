"""Cores, by the numbers the system gives them, and threads that keep to one."""

import os
from types import TracebackType


def allowed_cores() -> list[int]:
    """The cores that this process may run on, in order."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def cores_to_pin(n_threads: int) -> list[int]:
    """One core for each thread; OSError or ValueError where that cannot be."""
    if not hasattr(os, "sched_setaffinity"):
        raise OSError("pinned threads: this system cannot keep a thread to a core")
    cores = allowed_cores()
    if len(cores) < n_threads:
        raise ValueError(
            f"pinned threads: {n_threads} want a core each, this process may use {len(cores)}"
        )
    return cores[:n_threads]


class Pinned:
    """While inside, this thread keeps to one core; afterwards it is where it was allowed before."""

    def __init__(self, core: int) -> None:
        self._core, self._before = core, set[int]()

    def __enter__(self) -> None:
        self._before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {self._core})

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.sched_setaffinity(0, self._before)
