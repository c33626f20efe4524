"""Try planted bugs as the engine tries kernels, each in a child process.

As a program it reads bugs' names from standard input and answers each with a line of JSON: a
process that has imported everything forks for each, so that crashes and corrupted memory affect
nothing else.
"""

import json
import os
import queue
import resource
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE
from typing import Any

from conformance.bugs.bug import Bug
from conformance.cuda.emulator import Emulator
from conformance.support.child import opened
from conformance.support.rooms import ROOT
from kernels.cpu.runtime.float_control import read_control, restore_control
from kernels.cuda.runtime.current import taking_the_place
from kernels.planted import Planted
from kernels.trial import Request, attempt

PATIENCE = 90.0  # timeout in seconds for one bug, compilation included
BUSY = 30  # limit of CPU seconds within it
SECRET = 18  # the judge's hidden seed, fixed here, so that outcomes are reproducible


@dataclass(frozen=True, slots=True)
class Outcome:
    """The stage that rejected a bug and its message; no stage if it survived."""

    bug: Bug
    stage: str
    failure: str
    seconds: float

    @property
    def row(self) -> Planted:
        """The row that is stored."""
        bug = self.bug
        variant = f" ({bug.variant})" if bug.variant != "generic" else ""
        return Planted(
            bug.op, bug.name + variant, bug.language, bug.format or "", self.stage,
            round(self.seconds, 2), self.failure,
        )  # fmt: skip


def tried(bug: Bug, secret: int, tell: Callable[[str], object]) -> tuple[str, str]:
    """The stage that rejects it and its message, empty if none does; runs in this process. `tell`
    is called with each stage and case as it begins."""
    with tempfile.TemporaryDirectory() as folder:
        kernel = bug.kernel(Path(folder))
        request = Request(kernel.name, shapes=bug.shapes)
        for one in attempt(kernel, request, secret, lambda *what: tell(" ".join(what))):
            if not one.verdict.passed:
                return one.stage, f"{one.verdict.failure} (again: {one.again})"
    return "", ""


class Trials:
    """A server process and its requests; use as a context."""

    def __enter__(self) -> "Trials":
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stdin.close()
        self._server.wait(PATIENCE)
        self._server.stdout.close()

    def _start(self) -> None:
        self._server: Any = opened(
            sys.executable, "-m", "conformance.bugs.trial", cwd=ROOT,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}, stdin=PIPE, stderr=None,
        )  # fmt: skip

    def outcome(self, bug: Bug) -> Outcome:
        print(bug, file=self._server.stdin, flush=True)
        return Outcome(bug, **json.loads(self._server.stdout.readline()))


def outcomes(bugs: Iterable[Bug], workers: int = 2) -> Iterator[Outcome]:
    """Yield the outcomes of all bugs as they finish."""
    idle = queue.SimpleQueue[Trials]()

    def outcome(bug: Bug) -> Outcome:
        trials = idle.get()
        try:
            return trials.outcome(bug)
        finally:
            idle.put(trials)

    with ExitStack() as stack:
        for _ in range(workers):
            idle.put(stack.enter_context(Trials()))
        pool = ThreadPoolExecutor(workers)
        stack.callback(pool.shutdown, cancel_futures=True)
        for done in as_completed([pool.submit(outcome, bug) for bug in bugs]):
            yield done.result()


def _forked(bug: Bug) -> dict[str, Any]:
    """The outcome of a bug tried in a forked child."""
    started = time.perf_counter()
    ear, mouth = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (BUSY, BUSY + 1))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            with os.fdopen(mouth, "w", buffering=1) as said:
                stage, failure = tried(bug, SECRET, lambda told: said.write(f"{told}\n"))
                said.write(json.dumps({"stage": stage, "failure": failure}) + "\n")
            os._exit(0)
        except BaseException:  # an error of the trial itself, which rejects no bug
            traceback.print_exc()
            os._exit(1)
    os.close(mouth)
    alarm = threading.Timer(PATIENCE, os.kill, (child, signal.SIGKILL))
    alarm.start()
    with os.fdopen(ear) as heard:
        lines = heard.read().splitlines()
    _, status = os.waitpid(child, 0)
    alarm.cancel()
    last = lines[-1] if lines else "nothing"
    seconds = round(time.perf_counter() - started, 2)
    if last.startswith("{"):
        return {**json.loads(last), "seconds": seconds}
    stage, _, again = last.partition(" ")
    if os.WIFEXITED(status):
        return {"stage": "", "failure": f"the trial itself failed at {last}", "seconds": seconds}
    died = f"died by {signal.Signals(os.WTERMSIG(status)).name} (at: {again})"
    return {"stage": stage, "failure": died, "seconds": seconds}


def main() -> None:
    from conformance.bugs.table import EVERY

    named = {str(bug): bug for bug in EVERY}
    for share in (read_control, restore_control):
        share.compile()
    tried(named["attention/python/F32/zeros"], SECRET, len)  # imports for all children
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    with answers as out, taking_the_place(Emulator()):
        os.dup2(2, 1)
        for line in sys.stdin:
            print(json.dumps(_forked(named[line.strip()])), file=out)


if __name__ == "__main__":
    main()
