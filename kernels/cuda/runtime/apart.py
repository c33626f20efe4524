"""NVRTC in a process of its own, which may hang, run away or die: that is one line, and no more.

Run as a program (`python -m kernels.cuda.runtime.apart FD`) it is that process, which takes one
program after the other from the pipe of that number.
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

SECONDS, PATIENCE = 120, 900.0  # that a program may compute, and that it may take
MEMORY = 2 << 30  # bytes that it may take: ours take a tenth of that


class CompileError(Exception):
    """What the compiler says of a program, or what became of it."""


class Program(NamedTuple):
    """The text `name` among the `files` that it includes, and the compiler's options; the seconds
    of a core and the bytes that it may take."""

    name: str
    files: Mapping[str, str]
    options: tuple[str, ...]
    seconds: int
    memory: int


class Compiler:
    """One such process, begun when it is first asked, and again where it was lost."""

    def __init__(self) -> None:
        self._running: tuple[subprocess.Popen[bytes], Connection] | None = None
        self._alone = threading.Lock()

    def compiled(
        self, name: str, files: Mapping[str, str], options: tuple[str, ...]
    ) -> tuple[bytes, str]:
        """Machine code of all functions of a source, and what the compiler says of them;
        CompileError where there is none."""
        with self._alone:
            try:
                code, said = self._answer(Program(name, files, options, SECONDS, MEMORY))
                if not code:  # perhaps there was no memory left
                    raise CompileError(said)
                return code, said
            except BaseException:  # Ctrl-C too: nobody hears its answer
                self._end()
                raise

    def _answer(self, program: Program) -> tuple[bytes, str]:
        process, pipe = self._running = self._running or _begun()
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


def _begun() -> tuple[subprocess.Popen[bytes], Connection]:
    """It, and the pipe to it."""
    pipe, theirs = Pipe()
    with theirs:
        number = theirs.fileno()
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "kernels.cuda.runtime.apart", str(number)],
            pass_fds=[number],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C is this process's affair
            env=environment(),
        )
    return process, pipe


def _death(status: int) -> str:
    if status == -SIGXCPU:
        return f"the compiler was at it for more than {SECONDS} s"
    by = f"by {Signals(-status).name}" if status < 0 else f"with status {status}"
    return f"the compiler ended {by}; it may take {MEMORY / 2**30:g} GiB"


def _compile(program: Program) -> tuple[bytes, str]:
    """No code where it does not compile."""
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
        # CuPy leaves out the last byte, as it does of texts that end with 0
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
