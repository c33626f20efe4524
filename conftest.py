"""What holds for every test: Ctrl-C is heeded, no test hangs, and who of several processes takes
which (`pytest -n 2`, with pytest-xdist).

All tests of a kernel's formats run in one process, which compiles once what they have in common
while others compile others, and else all of a file, for what they share is made once.
"""

import faulthandler
import os
import re
import signal
from collections.abc import Generator, Iterator

import pytest

KERNEL = re.compile(r"\w+/cpu/\w+|\w+/cuda/\w+(/\w+)?")  # or a planted bug in CUDA
WHOLE = "conformance/kernel/test_cross_compile.py"  # a fixture compiles all of its kernels
LONGEST = 12 * 3600 if os.environ.get("ASSAY_DEEP") else 1200  # seconds that a test may take
STDERR = pytest.StashKey[int]()  # as it was before pytest captures what tests write

pytest.register_assert_rewrite("conformance.support")  # a failing helper says why, as a test does


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> Iterator[None]:
    """Ctrl-C interrupts tests and what they start, though cron and a shell's `&` have what they
    start ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test that waits in vain, in compiled code too, ends its process, which says where it was.

    A measurement may take as long as it does."""
    if not item.config.getoption("--benchmark", False):
        where = item.config.stash[STDERR]
        faulthandler.dump_traceback_later(LONGEST, exit=True, file=where)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def pytest_configure(config: pytest.Config) -> None:
    """Each process keeps to a core of its own, its threads with it: those of a team wait for each
    other, and the longer the more others are on their cores."""
    config.stash[STDERR] = os.dup(2)
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
