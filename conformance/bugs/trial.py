"""Planted bugs before what the engine demands of a kernel, each in a process of its own.

Run as a program it reads bugs' names from standard input and answers each with a line of JSON: a
process that has imported everything forks for each, so one that crashes or spoils its process
costs nothing else.
"""

import json
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.bugs.bug import Bug
from conformance.rooms import ROOT

PATIENCE = 120.0  # seconds for one bug, compiled and tried


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a bug ended: at which stage, by what; no stage if it survived."""

    bug: Bug
    stage: str
    failure: str
    seconds: float


def tried(bug: Bug) -> tuple[str, str]:
    """The stage that stopped it and what that says, empty if none did; in this process."""
    from kernels.trial import quick

    with tempfile.TemporaryDirectory() as folder:
        kernel = bug.kernel(Path(folder))
        if bug.language != "cuda":
            kernel.share.compile()
        certificate = quick(kernel)
    return ("cases", certificate.failure) if certificate.failure else ("", "")


class Trials:
    """A server and what it is asked; use as a context."""

    def __enter__(self) -> "Trials":
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stdin.close()
        self._server.wait()

    def _start(self) -> None:
        self._server: Any = subprocess.Popen(
            [sys.executable, "-m", "conformance.bugs.trial"],
            cwd=ROOT,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def outcome(self, bug: Bug) -> Outcome:
        print(bug, file=self._server.stdin, flush=True)
        return Outcome(bug, **json.loads(self._server.stdout.readline()))


def outcomes(bugs: Iterable[Bug], workers: int = 2) -> Iterator[Outcome]:
    """Of all of them, as they come."""
    waiting, done = list(reversed(list(bugs))), queue.Queue[Outcome | None]()

    def work() -> None:
        with Trials() as trials:
            while waiting:
                try:
                    bug = waiting.pop()
                except IndexError:
                    break
                done.put(trials.outcome(bug))
        done.put(None)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for _ in threads:
        yield from iter(done.get, None)


def _forked(bug: Bug) -> dict[str, Any]:
    """The outcome of a bug that is tried in a child."""
    started = time.perf_counter()
    answers, mouth = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(mouth, json.dumps(tried(bug)).encode())
        except BaseException as error:
            os.write(mouth, json.dumps(("error", repr(error))).encode())
        finally:
            os._exit(0)
    os.close(mouth)
    ready, _, _ = select.select([answers], [], [], PATIENCE)
    if not ready:
        os.kill(child, signal.SIGKILL)
    with os.fdopen(answers) as said:
        told = said.read()
    _, status = os.waitpid(child, 0)
    if told:
        stage, failure = json.loads(told)
    elif not ready:
        stage, failure = "cases", f"did not finish within {PATIENCE:g} s"
    else:
        stage, failure = "cases", f"took its process down with {signal.Signals(status).name}"
    seconds = round(time.perf_counter() - started, 2)
    return {"stage": stage, "failure": failure, "seconds": seconds}


def main() -> None:
    from conformance.bugs.table import EVERY

    named = {str(bug): bug for bug in EVERY}
    with os.fdopen(os.dup(1), "w", buffering=1) as out:
        os.dup2(2, 1)
        for line in sys.stdin:
            print(json.dumps(_forked(named[line.strip()])), file=out)


if __name__ == "__main__":
    main()
