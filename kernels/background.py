"""Checks the laws of a running model's kernels in the background, at idle priority.

Loading demands level "quick"; this runs level "full" while the user reads or types. A kernel that
breaks a law is refused from the next load on.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress

from kernels.certificates import Store, reached
from kernels.certify import certify
from kernels.child import begin, environment
from kernels.table import find_any
from kernels.trial import Request

PATIENCE = 24 * 3600.0  # seconds: an idle-priority process may wait long for a core


class Background:
    """A process that checks kernels, given by name, for what they have not proved yet; it ends with
    this one."""

    def __init__(self, kernels: Iterable[str]) -> None:
        Store().ready()  # or a temporary folder would belong to the child, which may be killed
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "kernels.background", *sorted(kernels)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for whoever waits for an answer
            env=environment(),
        )
        if hasattr(os, "SCHED_IDLE"):
            with suppress(ProcessLookupError):
                os.sched_setscheduler(self._process.pid, os.SCHED_IDLE, os.sched_param(0))

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self) -> None:
        """Wait until all are checked."""
        self._process.wait()

    def close(self) -> None:
        """End the process and its children."""
        if self._process.poll() is None:
            with suppress(OSError):  # it has ended
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


def _end_with_parent() -> None:
    os.read(0, 1)  # it ends when our end of the pipe closes
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Check the kernels named on the command line."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.nice(19)
    store = Store()
    known = store.load()
    kernels = [find_any(name) for name in sys.argv[1:]]
    wanted = [Request(k.name, "full") for k in kernels if not reached(k, known, "full")]
    certify(wanted, store, patience=PATIENCE)


if __name__ == "__main__":
    begin(main)
