"""A child process that answers questions, one JSON line each.

What may crash, hang or keep threads busy is asked from afar: its death is found and told in one
line, its threads and memory never meet the parent's, and it does not outlive the parent.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from importlib import import_module
from typing import Any, Self

from kernels.child import environment

LINES = 50  # of the child's stderr, the last that are kept
FAREWELL = 10.0  # seconds a child has to end by itself once nobody asks any more
QUIET = 0.02  # seconds over which a process at rest is looked for
PATIENCE = 2.0  # seconds within which it must come to rest


class ChildError(RuntimeError):
    """A question that got no answer: one line that says why, and `reason`, which does not say what
    was asked."""

    def __init__(self, reason: str, told: str = "") -> None:
        super().__init__(f"{told}: {reason}" if told else reason)
        self.reason = reason


def output(
    program: str,
    options: Mapping[str, object | None],
    patience: float,
    env: Mapping[str, str] | None = None,
) -> "subprocess.CompletedProcess[str]":
    """What a program prints that ends by itself within `patience` seconds; ChildError where it
    cannot be run, takes longer, or fails. Options without a value are None; `env` is added to this
    process's environment."""
    words = [program, *(str(w) for pair in options.items() for w in pair if w is not None)]
    try:
        done = subprocess.run(
            words,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=patience,
            check=False,
        )
    except OSError as error:
        raise ChildError(f"{program}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise ChildError(f"{program}: no answer within {patience:g} s") from None
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise ChildError(f"{program} ended with {done.returncode}: {said[0][:200]}")
    return done


class Closing:
    """A context manager that closes itself."""

    def close(self) -> None:
        """Free what it has."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Child(Closing):
    """A process that has `home`, a function or a class as `module:name`, imported when it is first
    asked; a context manager that ends it. A class is made once, of `arguments`.

    `env` is added to this process's environment. Modules are looked for where this process looks
    for them, unless `env` has a PYTHONPATH. A child that takes longer than `patience` seconds over
    an answer counts as hung and is killed. What it has started ends with it.
    """

    def __init__(
        self,
        home: str,
        *arguments: Any,
        env: Mapping[str, str] | None = None,
        patience: float = 600.0,
    ) -> None:
        self.home, self.patience = home, patience
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "bench.child", home, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            process_group=0,
            env={**environment(), **(env or {})},
        )
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._complaints: deque[str] = deque(maxlen=LINES)
        self._readers = [
            threading.Thread(target=_collect, args=wiring, daemon=True)
            for wiring in (
                (self._process.stdout, self._answers.put, True),
                (self._process.stderr, self._complaints.append, False),
            )
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it died, hung or was closed, so that it can be asked no more."""
        return self._process.stdin is None or self._process.stdin.closed

    def ask(self, method: str = "", /, **arguments: Any) -> Any:
        """What its function gives for these arguments, or a method of its class. A child that
        reports an error lives on; one that died or hung is gone."""
        asked = json.dumps([method, arguments])
        told = f"{self.home}, asked {asked[:200]}"
        if self.ended or self._process.stdin is None:
            raise ChildError("it has ended before", told)
        with suppress(BrokenPipeError):  # it is dead: its status says how
            self._process.stdin.write(asked + "\n")
            self._process.stdin.flush()
        try:
            line = self._answers.get(timeout=self.patience)
        except queue.Empty:
            kill(self._process)
            self.close()
            raise ChildError(f"no answer within {self.patience:g} s", told) from None
        if line is None:
            self.close()
            raise ChildError(self._death(), told)
        answer = json.loads(line)
        if "error" in answer:
            raise ChildError(str(answer["error"]))
        return answer["answer"]

    def close(self) -> None:
        """End the child: it is told that nobody asks any more, and killed if that does not do."""
        if self.ended or self._process.stdin is None:
            return
        with suppress(BrokenPipeError):  # it is dead already
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(FAREWELL)
        kill(self._process)
        with suppress(subprocess.TimeoutExpired):  # a call into a driver may never end
            self._process.wait(FAREWELL)
        for reader in self._readers:
            reader.join(FAREWELL)  # a grandchild may hold the pipes open
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None and not any(reader.is_alive() for reader in self._readers):
                stream.close()

    def _death(self) -> str:
        status = self._process.returncode
        if status is None:
            return "it has closed its output and does not end"
        last = next((line for line in reversed(self._complaints) if line), "")
        said = f": {last[:300]}" if last else ""
        if status < 0:
            return f"it died of {signal.Signals(-status).name}{said}"
        return f"it ended with status {status}{said}"


def kill(process: subprocess.Popen[str]) -> None:
    """A process with all that it started, where it leads a group of its own."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()


class Revived(ExitStack):
    """A child that comes back: the question after one that it died or hung over, or after `close`,
    goes to another. A context manager that ends the last."""

    def __init__(self, home: str) -> None:
        super().__init__()
        self._home = home
        self._child: Child | None = None

    def ask(self, patience: float, method: str = "", /, **arguments: Any) -> Any:
        """The answer, within so many seconds, a new child's start included; or ChildError."""
        if self._child is None or self._child.ended:
            self._child = self.enter_context(Child(self._home))
        self._child.patience = patience
        return self._child.ask(method, **arguments)


def _collect(stream: Iterable[str], keep: Callable[[str | None], None], end: bool) -> None:
    for line in stream:
        keep(line.strip())
    if end:
        keep(None)


def settle() -> None:
    """Wait until this process's threads are at rest, so that the next contender has the machine
    to itself: thread pools look out for more work for a while after the last."""
    deadline = time.perf_counter() + PATIENCE
    while time.perf_counter() < deadline:
        used = time.process_time()
        time.sleep(QUIET)
        if time.process_time() - used < QUIET / 20:
            return
    raise RuntimeError(
        f"its idle threads use the CPU for more than {PATIENCE:g} s: is OMP_WAIT_POLICY set?"
    )


def serve() -> None:
    """The child's side: answer the questions on standard input until it closes.

    What an answer raises becomes {"error": line}. From here on whatever is printed goes to stderr
    and standard input is empty, so that no library can disturb the talk. When the parent goes
    while an answer is in the making, the process ends at once.
    """
    home, arguments = sys.argv[1], json.loads(sys.argv[2])
    asked, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    questions: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    busy = threading.Event()

    def read() -> None:
        for line in asked:
            questions.put(line)
        if busy.is_set():
            os._exit(1)
        questions.put(None)

    threading.Thread(target=read, daemon=True).start()
    served: Any = None
    while (line := questions.get()) is not None:
        busy.set()
        try:
            if served is None:
                served = _found(home, arguments)
            method, named = json.loads(line)
            answer = (getattr(served, method) if method else served)(**named)
            told = json.dumps({"answer": answer})
        except Exception as error:
            traceback.print_exc()
            told = json.dumps({"error": _one_line(error)})
        busy.clear()
        answers.write(told + "\n")


def _found(home: str, arguments: list[Any]) -> Any:
    """The function, or an object of the class."""
    module, _, name = home.partition(":")
    found = getattr(import_module(module), name)
    return found(*arguments) if isinstance(found, type) else found


def _one_line(error: Exception) -> str:
    """Our own errors read as they are; a stranger's is named."""
    text = " ".join(str(error).split())
    plain = text and isinstance(error, ValueError | RuntimeError | OSError)
    return text if plain else f"{type(error).__name__}: {text}"


if __name__ == "__main__":
    serve()
