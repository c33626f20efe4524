"""Threads that take what is waiting, one piece of work after the other."""

import queue
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

T = TypeVar("T")


def taken(waiting: "queue.SimpleQueue[T]", until: float) -> Iterator[T]:
    """What is waiting, until nothing is, or the moment `until`, of time.monotonic()."""
    while time.monotonic() < until:
        try:
            yield waiting.get_nowait()
        except queue.Empty:
            return


def in_threads(count: int, work: Callable[[], None], waiting: "queue.SimpleQueue[T]") -> None:
    """Run work() in so many threads; what one of them raises is raised. After that, or Ctrl-C, no
    other takes anything that is waiting."""
    with ThreadPoolExecutor(count) as pool:
        try:
            for done in as_completed([pool.submit(work) for _ in range(count)]):
                done.result()
        except BaseException:
            for _ in taken(waiting, float("inf")):
                pass
            raise
