"""NVRTC in a child process with limits: if it hangs, runs out of memory or dies, that is a one-line
error.

As a program (`python -m kernels.cuda.runtime.nvrtc_process FD`) it is the child, which compiles the
programs that it receives over the pipe with that file descriptor.
"""

import resource
import subprocess
import sys
import threading
from collections.abc import Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from signal import SIGXCPU, Signals
from typing import NamedTuple

from kernels.child import environment

SECONDS, PATIENCE = 120, 900.0  # CPU seconds, and wall-clock seconds until it is given up
MEMORY = 2 << 30  # bytes it may use: our sources take a tenth of that
UNCACHED = {"CUDA_CACHE_DISABLE": "1"}  # code from the driver's cache comes without ptxas' log


class CompileError(Exception):
    """The compiler's error message, or how its process ended."""


class Program(NamedTuple):
    """The source `name` among its include `files`, the compiler's options, and limits: CPU seconds
    and bytes."""

    name: str
    files: Mapping[str, str]
    options: tuple[str, ...]
    seconds: int
    memory: int


class Compiler:
    """The compiler process: started on first use and again after it was lost."""

    def __init__(self) -> None:
        self._running: tuple[subprocess.Popen[bytes], Connection] | None = None
        self._alone = threading.Lock()

    def compiled(
        self, name: str, files: Mapping[str, str], options: tuple[str, ...]
    ) -> tuple[bytes, str]:
        """Machine code of all functions of a source, and the compiler's log; CompileError on
        failure."""
        with self._alone:
            try:
                code, said = self._answer(Program(name, files, options, SECONDS, MEMORY))
                if not code:  # perhaps out of memory
                    raise CompileError(said)
                return code, said
            except BaseException:  # Ctrl-C too: its answer would never be read
                self._end()
                raise

    def _answer(self, program: Program) -> tuple[bytes, str]:
        process, pipe = self._running = self._running or _start()
        try:
            pipe.send(program)
            if not pipe.poll(PATIENCE):
                raise CompileError(f"the compiler gave no answer within {PATIENCE:g} s")
            answer: tuple[bytes, str] = pipe.recv()
            return answer
        except (EOFError, OSError):
            raise CompileError(_death(process.wait())) from None

    def _end(self) -> None:
        if self._running:
            process, pipe = self._running
            pipe.close()
            process.kill()
            process.wait()
        self._running = None


def _start() -> tuple[subprocess.Popen[bytes], Connection]:
    """Start the process; returns it and our end of the pipe."""
    pipe, theirs = Pipe()
    with theirs:
        number = theirs.fileno()
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "kernels.cuda.runtime.nvrtc_process", str(number)],
            pass_fds=[number],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C is this process's affair
            env=environment() | UNCACHED,
        )
    return process, pipe


def _death(status: int) -> str:
    if status == -SIGXCPU:
        return f"the compiler was at it for more than {SECONDS} s"
    by = f"by {Signals(-status).name}" if status < 0 else f"with status {status}"
    return f"the compiler ended {by}; it may take {MEMORY / 2**30:g} GiB"


def _compile(program: Program) -> tuple[bytes, str]:
    """The machine code, empty on failure, and the compiler's log."""
    from cupy_backends.cuda.libs import nvrtc

    used = resource.getrusage(resource.RUSAGE_SELF)
    spent = int(used.ru_utime + used.ru_stime) + 1
    for kind, most in (
        (resource.RLIMIT_CPU, spent + program.seconds),
        (resource.RLIMIT_DATA, program.memory),
    ):
        resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))
    files = dict(program.files)
    text = files.pop(program.name)
    headers = [word.encode() for word in files.values()], [name.encode() for name in files]
    made = nvrtc.createProgram(text, program.name, *headers)
    try:
        nvrtc.compileProgram(made, program.options)
        # CuPy drops the last byte, as it does for 0-terminated texts
        return nvrtc.getCUBIN(made) + b"\0", nvrtc.getProgramLog(made)
    except nvrtc.NVRTCError as error:
        return b"", nvrtc.getProgramLog(made).strip() or str(error)
    finally:
        nvrtc.destroyProgram(made)


def main() -> None:
    pipe = Connection(int(sys.argv[1]))
    while True:
        try:
            program = pipe.recv()
        except EOFError:
            return
        pipe.send(_compile(Program(*program)))


if __name__ == "__main__":
    main()
