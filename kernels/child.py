"""Where a child process finds its modules, and how a process ends whose work is done."""

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
    """A child's that is started with -P, so that its working folder is not looked into: it finds
    the modules that this process finds, and our rooms before others of their names."""
    paths = sorted([*filter(None, sys.path), HERE], key=_has_others)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def begin(main: Callable[[], None]) -> None:
    """Run a program's main function.

    Garbage is looked for seldom: imports alone make 250,000 objects, all of which stay. And frames
    have room: CPython keeps them in chunks of 16 KiB, which it asks the system for and gives back
    whenever a call goes beyond one, so that a loop at such a place takes many times as long. A
    frame that is larger has a chunk of a power of two, with as much behind it for all it calls.
    """
    gc.set_threshold(GARBAGE)

    def run() -> None:
        main()

    run.__code__ = run.__code__.replace(co_stacksize=ROOM)
    run()


def leave(status: int = 0) -> NoReturn:
    """End this process, whose work is done. To take apart what Python and LLVM have made of its
    modules and kernels would take half a second, for which somebody waits."""
    atexit._run_exitfuncs()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with suppress(OSError):
            stream.flush()
    os._exit(status)


def _has_others(path: str) -> bool:
    return path != HERE and any(PathFinder.find_spec(room, [path]) for room in ROOMS)
