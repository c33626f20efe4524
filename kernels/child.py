"""Environment and exit of child processes."""

import atexit
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

HERE = str(Path(__file__).absolute().parents[1])
ROOMS = ("reference", "kernels", "engine", "conformance", "bench", "data")


def environment() -> dict[str, str]:
    """The environment for a child started with -P, which does not search its working folder: it
    finds the modules that this process finds, and our packages before others of the same name."""
    paths = sorted([*filter(None, sys.path), HERE], key=_has_others)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def leave() -> None:
    """Exit now that the work is done, skipping interpreter teardown: to free Python's modules and
    LLVM's kernels takes half a second that the user would wait for."""
    atexit._run_exitfuncs()
    os._exit(0)


def _has_others(path: str) -> bool:
    return path != HERE and any(PathFinder.find_spec(room, [path]) for room in ROOMS)
