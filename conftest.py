"""Tests in several processes (`pytest -n 2`, with pytest-xdist): who takes which.

All tests of a kernel run in one process, which compiles it while others compile others, and else
all of a file, for what they share is made once.
"""

import os
import re

import pytest

KERNEL = re.compile(r"\w+/(cpu|cuda)/\w+(/\w+)?|\w+/wrong/[\w./-]+")  # or a planted bug
WHOLE = "conformance/kernel/test_cross_compile.py"  # a fixture compiles all of its kernels


def pytest_configure() -> None:
    """Each process keeps to a core of its own, its threads with it: those of a team wait for each
    other by yielding, which another process on their cores would not give back at once."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if worker and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})


def together(nodeid: str) -> str:
    """What the tests that must run in this one's process have in common with it."""
    file, _, test = nodeid.partition("::")
    kernel = None if file == WHOLE else KERNEL.search(test)
    return kernel[0] if kernel else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """In the order of the tests, though pytest-xdist would begin with the longest lists."""
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return together(nodeid)

    config.option.loadscopereorder = False
    return Together(config, log)
