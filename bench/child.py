"""A child process that answers requests.

It isolates what may crash, hang or keep threads busy: its death is reported in one line, its
threads and memory are separate from the parent's, and it does not outlive the parent.
"""

import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from engine.closeable import Closeable
from kernels.child import environment

MOST = 10_000  # bytes at the end of the child's output in which its last line is looked for
PROGRAM = 600.0  # seconds for a program
FAREWELL = 10.0  # seconds for a child to end by itself once the pipe is closed
QUIET = 0.02  # seconds over which a process must be idle
PATIENCE = 2.0  # seconds within which it must become idle


class ChildError(RuntimeError):
    """A request without an answer: one line with the reason; `reason` leaves out the request."""

    def __init__(self, reason: str, told: str = "") -> None:
        super().__init__(f"{told}: {reason}" if told else reason)
        self.reason = reason


@contextmanager
def started(
    words: Sequence[str], env: Mapping[str, str] | None = None, folder: Path | None = None
) -> Iterator["subprocess.Popen[str]"]:
    """Context of a running program whose output is captured; it ends with the block, with all
    processes that it started. `env` is added to this process's environment."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, errors="replace",
        env={**os.environ, **(env or {})}, cwd=folder, process_group=0,
    )  # fmt: skip
    try:
        yield process
    finally:
        kill(process)
        with suppress(subprocess.TimeoutExpired, ValueError):  # a call into a driver may never end
            process.communicate(timeout=FAREWELL)


def output(
    program: str, options: Mapping[str, object | None], env: Mapping[str, str] | None = None
) -> tuple[str, str]:
    """Run a program to its end; returns its stdout and stderr. ChildError where it cannot be run,
    takes too long, or fails. Options without a value are None."""
    words = [program, *(str(w) for pair in options.items() for w in pair if w is not None)]
    try:
        with started(words, env) as process:
            out, err = process.communicate(timeout=PROGRAM)
    except OSError as error:
        raise ChildError(f"{program}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise ChildError(f"{program}: no answer within {PROGRAM:g} s") from None
    if process.returncode:
        said = last_line(err) or "no message"
        raise ChildError(f"{program} ended with {process.returncode}: {said[:200]}")
    return out, err


def last_line(text: str) -> str:
    """The last line of a program's output; "" if there is none."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


class Child(Closeable):
    """A process that imports `home`, a function or a class as `module:name`, at the first request;
    a context manager that ends it. A class is instantiated once, with `arguments`.

    `env` is added to this process's environment. Modules are found where this process finds them,
    unless `env` has a PYTHONPATH. A child that takes longer than `patience` seconds for an answer
    counts as hung and is killed, with all processes that it started.
    """

    def __init__(
        self,
        home: str,
        *arguments: Any,
        env: Mapping[str, str] | None = None,
        patience: float = 600.0,
    ) -> None:
        self.home, self.patience = home, patience
        self._printed, self._last = tempfile.TemporaryFile(), ""  # noqa: SIM115 - closed with it
        self._talk, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "bench.child", str(theirs.fileno()), home],
                stdin=subprocess.DEVNULL,
                stdout=self._printed,
                stderr=subprocess.STDOUT,
                process_group=0,
                pass_fds=[theirs.fileno()],
                env={**environment(), **(env or {})},
            )
        self._tell(arguments)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it died, hung or was closed, and takes no more requests."""
        return self._talk.closed

    def ask(self, method: str = "", /, **arguments: Any) -> Any:
        """Call its function, or a method of its class, with these arguments. A child that reports
        an error lives on; one that died or hung is gone."""
        told = f"{self.home}, asked {str([method, arguments])[:200]}"
        if self.ended:
            raise ChildError("it has ended before", told)
        self._tell((method, arguments))
        if not self._talk.poll(self.patience):
            kill(self._process)
            self.close()
            raise ChildError(f"no answer within {self.patience:g} s", told)
        try:
            error, answer = self._talk.recv()
        except (EOFError, ConnectionResetError):
            self.close()
            raise ChildError(self._death(), told) from None
        if error:
            raise ChildError(error)
        return answer

    def close(self) -> None:
        """Tell the child that there are no more requests, and kill it if it does not end."""
        if self.ended:
            return
        self._talk.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(FAREWELL)
        kill(self._process)
        with suppress(subprocess.TimeoutExpired):  # a call into a driver may never end
            self._process.wait(FAREWELL)
        with self._printed as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - MOST))
            self._last = last_line(file.read().decode(errors="replace"))

    def _tell(self, words: Any) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # it is dead: its status tells how
            self._talk.send(words)

    def _death(self) -> str:
        status = self._process.returncode
        if status is None:
            return "it has closed its output and does not end"
        said = f": {self._last[:300]}" if self._last else ""
        if status < 0:
            return f"it died of {signal.Signals(-status).name}{said}"
        return f"it ended with status {status}{said}"


def kill(process: "subprocess.Popen[Any]") -> None:
    """Kill a process, and its group if it leads one."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()


class Revived(ExitStack):
    """A child that is restarted for the request after one that it died or hung on, or after
    `close`. A context manager that ends the last one."""

    def __init__(self, home: str) -> None:
        super().__init__()
        self._home = home
        self._child: Child | None = None

    def ask(self, patience: float, method: str = "", /, **arguments: Any) -> Any:
        """The answer within so many seconds, including the start of a new child; or ChildError."""
        if self._child is None or self._child.ended:
            self._child = self.enter_context(Child(self._home))
        self._child.patience = patience
        return self._child.ask(method, **arguments)


def settle() -> None:
    """Wait until this process's threads are idle, so that the next contender has the machine to
    itself: thread pools spin for a while after their last work."""
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
    """The child's side: answer requests until the parent closes the pipe.

    An exception is reported in one line. If the parent ends during a request, the process ends at
    once.
    """
    talk, home = Connection(int(sys.argv[1])), sys.argv[2]
    questions: queue.SimpleQueue[Any] = queue.SimpleQueue()
    busy = threading.Event()

    def read() -> None:
        with suppress(EOFError, ConnectionResetError):
            while True:
                questions.put(talk.recv())
        if busy.is_set():
            os._exit(1)
        questions.put(None)

    threading.Thread(target=read, daemon=True).start()
    arguments, served = questions.get(), None
    while (question := questions.get()) is not None:
        busy.set()
        try:
            if served is None:
                served = _found(home, arguments)
            method, named = question
            told = "", (getattr(served, method) if method else served)(**named)
        except Exception as error:
            traceback.print_exc()
            told = _one_line(error), None
        busy.clear()
        talk.send(told)


def _found(home: str, arguments: Sequence[Any]) -> Any:
    """The function, or an instance of the class."""
    module, _, name = home.partition(":")
    found = getattr(import_module(module), name)
    return found(*arguments) if isinstance(found, type) else found


def _one_line(error: Exception) -> str:
    """An error in one line: our own as they are, others with their type."""
    text = " ".join(str(error).split())
    plain = text and isinstance(error, ValueError | RuntimeError | OSError)
    return text if plain else f"{type(error).__name__}: {text}"


if __name__ == "__main__":
    serve()
