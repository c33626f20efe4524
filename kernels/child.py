"""Where a child process finds its modules, and how a process ends whose work is done."""

import atexit
import os
import sys
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NoReturn

HERE = str(Path(__file__).absolute().parents[1])
ROOMS = ("reference", "kernels", "engine", "conformance", "bench", "data")


def environment() -> dict[str, str]:
    """A child's that is started with -P, so that its working folder is not looked into: it finds
    the modules that this process finds, and our rooms before others of their names."""
    paths = sorted([*filter(None, sys.path), HERE], key=_has_others)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


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
