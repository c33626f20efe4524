"""A child process that answers questions.

What may crash, hang or keep threads busy is asked from afar: its death is found and told in one
line, its threads and memory never meet the parent's, and it does not outlive the parent.
"""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from engine.closeable import Closeable
from kernels.child import environment

LINES = 50  # that the child prints, the last that are kept
PROGRAM = 600.0  # seconds that a program may take
FAREWELL = 10.0  # seconds a child has to end by itself once nobody asks any more
QUIET = 0.02  # seconds over which a process at rest is looked for
PATIENCE = 2.0  # seconds within which it must come to rest


class ChildError(RuntimeError):
    """A question that got no answer: one line that says why, and `reason`, which does not say what
    was asked."""

    def __init__(self, reason: str, told: str = "") -> None:
        super().__init__(f"{told}: {reason}" if told else reason)
        self.reason = reason


@contextmanager
def started(
    words: Sequence[str], env: Mapping[str, str] | None = None, folder: Path | None = None
) -> Iterator["subprocess.Popen[str]"]:
    """A program whose output is caught; it ends with the block, and so does all that it started.
    `env` is added to this process's environment."""
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
    """What a program prints, on stdout and on stderr, that ends by itself; ChildError where it
    cannot be run, takes too long, or fails. Options without a value are None."""
    words = [program, *(str(w) for pair in options.items() for w in pair if w is not None)]
    try:
        with started(words, env) as process:
            out, err = process.communicate(timeout=PROGRAM)
    except OSError as error:
        raise ChildError(f"{program}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise ChildError(f"{program}: no answer within {PROGRAM:g} s") from None
    if process.returncode:
        said = err.strip().splitlines()[-1:] or ["no message"]
        raise ChildError(f"{program} ended with {process.returncode}: {said[0][:200]}")
    return out, err


class Child(Closeable):
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
        self._talk, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "bench.child", str(theirs.fileno()), home],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                process_group=0,
                pass_fds=[theirs.fileno()],
                env={**environment(), **(env or {})},
            )
        self._complaints: deque[str] = deque(maxlen=LINES)
        printed: Iterable[str] = self._process.stdout or ()
        self._reader = threading.Thread(
            target=lambda: self._complaints.extend(map(str.strip, printed)), daemon=True
        )
        self._reader.start()
        self._tell(arguments)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it died, hung or was closed, so that it can be asked no more."""
        return self._talk.closed

    def ask(self, method: str = "", /, **arguments: Any) -> Any:
        """What its function gives for these arguments, or a method of its class. A child that
        reports an error lives on; one that died or hung is gone."""
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
        """End the child: it is told that nobody asks any more, and killed if that does not do."""
        if self.ended:
            return
        self._talk.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(FAREWELL)
        kill(self._process)
        with suppress(subprocess.TimeoutExpired):  # a call into a driver may never end
            self._process.wait(FAREWELL)
        self._reader.join(FAREWELL)  # a grandchild may hold the pipe open
        if self._process.stdout and not self._reader.is_alive():
            self._process.stdout.close()

    def _tell(self, words: Any) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # it is dead: its status says how
            self._talk.send(words)

    def _death(self) -> str:
        status = self._process.returncode
        if status is None:
            return "it has closed its output and does not end"
        last = next((line for line in reversed(self._complaints) if line), "")
        said = f": {last[:300]}" if last else ""
        if status < 0:
            return f"it died of {signal.Signals(-status).name}{said}"
        return f"it ended with status {status}{said}"


def kill(process: "subprocess.Popen[str]") -> None:
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
    """The child's side: answer the questions that come until nobody asks any more.

    What an answer raises is told in a line. When the parent goes while an answer is in the making,
    the process ends at once.
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
