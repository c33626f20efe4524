"""Environment of child processes, and the beginning and end of a program."""

import atexit
import gc
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NoReturn

HERE = str(Path(__file__).absolute().parents[1])
GARBAGE = 400_000  # objects made between two searches
ROOM = 2**15  # words
ROOMS = ("reference", "kernels", "engine", "conformance", "bench", "data")


def environment() -> dict[str, str]:
    """The environment for a child started with -P, which does not search its working folder: it
    finds the modules that this process finds, and our packages before others of the same name."""
    paths = sorted([*filter(None, sys.path), HERE], key=_has_others)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def begin(main: Callable[[], None]) -> None:
    """Run a program's main function.

    Garbage collection is rare: imports alone create 250,000 objects, all of which stay. And frames
    have room: CPython stores them in chunks of 16 KiB, mapped and unmapped whenever a call crosses
    the end of one, so that a loop at such a depth takes many times as long. A larger frame gets a
    chunk of a power of two, which leaves as much for all its callees.
    """
    gc.set_threshold(GARBAGE)

    def run() -> None:
        main()

    run.__code__ = run.__code__.replace(co_stacksize=ROOM)
    run()


def leave(status: int = 0) -> NoReturn:
    """Exit now that the work is done, skipping interpreter teardown: to free Python's modules and
    LLVM's kernels takes half a second that the user would wait for."""
    atexit._run_exitfuncs()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with suppress(OSError):
            stream.flush()
    os._exit(status)


def _has_others(path: str) -> bool:
    return path != HERE and any(PathFinder.find_spec(room, [path]) for room in ROOMS)
