"""The process that runs a candidate: start, request, watch, stop and end.

It knows nothing of cases or results. One turn: arrays are mapped while the child is stopped; the
judge writes inputs and fills outputs with garbage; the child runs its calls and stops itself; only
then does the judge read the outputs. The judge times a turn, from resuming the child to its stop.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from kernels.child import HERE, ROOMS
from kernels.cpu.runtime.cores import physical_cores
from kernels.foreign.arena import Side, Slot
from kernels.foreign.candidate import Candidate, Layout, size_names
from kernels.foreign.report import COPIED, INTERPRETED
from kernels.guard import AT_END
from reference.op import DTYPES, Arguments, Op

PLACES = (AT_END, 0, 64, 16, 4)
MOST_SAID = 2**20  # bytes in a line from a child
COMPLAINTS = 4000  # bytes kept of what it last printed
KEPT = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TZ", "TRITON_INTERPRET")  # of the environment
GPUS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # of NVIDIA, of AMD, and of either in WSL
RUNS = {"interpreted": INTERPRETED, "copied": COPIED}  # ways of running that a child may report
COUNTS = ("OMP", "OPENBLAS", "MKL", "NUMBA", "NUMEXPR", "BLIS", "VECLIB_MAXIMUM")
SYSTEM = (
    "/usr", "/lib", "/lib64", "/lib32", "/bin", "/etc", "/opt", "/proc", "/sys", "/nix",
    "/dev/null", "/dev/zero", "/dev/urandom", "/dev/random", "/dev/shm",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on a candidate: seconds for a call and for loading, bytes of memory and of a file it
    writes, threads (0: one for each core), whether it may start programs (torch.compile needs a
    compiler), and CPU seconds in all."""

    seconds: float = 10.0
    load: float = 120.0
    memory: int = 2**32
    files: int = 2**26
    threads: int = 0
    processes: bool = False
    cpu: int = 3600


class Ended(RuntimeError):  # noqa: N818  it is what was found
    """A candidate raised, crashed, hung or wrote out of bounds; `kind` is "raised", "crashed",
    "hung" or "wrong"."""

    def __init__(self, kind: str, said: str, signal: int = 0) -> None:
        super().__init__(said)
        self.kind, self.signal = kind, signal


@dataclass(frozen=True, slots=True)
class Call:
    """One call's arrays as the judge maps them, the outputs' previous contents, and the scalars."""

    inputs: dict[str, Slot]
    outputs: dict[str, Slot]
    scalars: dict[str, Any]


class Child:
    """A loaded candidate. `lenient`: inputs are writable, to diagnose who writes to them."""

    def __init__(
        self, candidate: Candidate, layout: Layout, limits: Limits,
        threads: int = 0, lenient: bool = False,
    ) -> None:  # fmt: skip
        self.limits, self._layout, self._lenient = limits, layout, lenient
        self.candidate = candidate
        self.inputs, self.outputs = Side(readable_only=not lenient), Side(readable_only=False)
        self._folder = Path(tempfile.mkdtemp(prefix="candidate-"))
        for name in ("runner.py", "sandbox.py", "driver.py"):
            shutil.copy(Path(__file__).with_name(name), self._folder)
        self._printed = (self._folder / "printed.txt").open("wb+")
        ours, theirs = socket.socketpair()
        self._control, self._unread = ours, b""
        count = str(threads or limits.threads or physical_cores())
        shared = (self.inputs.descriptor, self.outputs.descriptor, theirs.fileno())
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-B", str(self._folder / "runner.py"), *map(str, shared)],
            stdin=subprocess.DEVNULL,
            stdout=self._printed,
            stderr=self._printed,
            cwd=self._folder,
            env=self._environment(count),
            start_new_session=True,
            pass_fds=shared,
        )
        theirs.close()
        self.sandbox: tuple[tuple[str, str], ...] = ()
        self.notes = (COPIED,) if candidate.kind == "cubin" else ()  # how it runs
        try:
            self._tell(self._start())
            self._until_still(limits.load, "loading it")
        except BaseException:
            self.close()
            raise

    def _environment(self, threads: str) -> dict[str, str]:
        own = str(self._folder)
        places = ("HOME", "TMPDIR", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR", "TRITON_CACHE_DIR")
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        counts = {f"{name}_NUM_THREADS": threads for name in COUNTS}
        triton = {} if any(map(os.path.exists, GPUS)) else {"TRITON_INTERPRET": "1"}
        return triton | kept | counts | dict.fromkeys(places, own)

    def _start(self) -> dict[str, Any]:
        path = [entry for entry in sys.path if entry and Path(entry).resolve() != Path(HERE)]
        around = str(self.candidate.file.parent)
        hidden = [
            str(Path(HERE, room))
            for room in ROOMS
            if Path(HERE, room).is_dir() and Path(HERE, room) not in self.candidate.file.parents
        ]
        readable = [*SYSTEM, sys.prefix, sys.base_prefix, sys.exec_prefix, *path, around]
        readable += [str(folder) for folder in self._layout.folders]
        gpus = [*GPUS, *map(str, Path("/dev").glob("nvidia*"))]
        return {
            "path": [str(self._folder), *path, around],
            "rooms": ROOMS,
            "load": self._layout.told,
            "confine": {
                "readable": sorted({str(Path(p).resolve()) for p in readable}),
                "writable": [str(self._folder), "/dev/null", *gpus],
                "hidden": hidden,
                "memory": self.limits.memory,
                "files": self.limits.files,
                "seconds": self.limits.cpu,
                "processes": self.limits.processes,
            },
        }

    def prepare(self, calls: Sequence[Call]) -> None:
        """Have the child map the arrays of these calls; it is stopped afterwards, and they are
        empty."""
        told = [
            {
                "inputs": {name: slot.as_list() for name, slot in call.inputs.items()},
                "outputs": {name: slot.as_list() for name, slot in call.outputs.items()},
                "scalars": call.scalars,
            }
            for call in calls
        ]
        self._tell({"writable": self._lenient, "calls": told})
        os.kill(self._process.pid, signal.SIGCONT)
        self._until_still(self.limits.seconds, "mapping arrays")

    def run(self, calls: int = 1) -> float:
        """Run the calls; returns the seconds until the child stopped."""
        began = time.perf_counter()
        os.kill(self._process.pid, signal.SIGCONT)
        return self._until_still(self.limits.seconds * calls, "the call") - began

    def stands_still(self) -> bool:
        """Whether the child is still stopped since its turn, whoever may have tried to resume
        it."""
        told, _ = os.waitpid(self._process.pid, os.WNOHANG | os.WCONTINUED)
        return told == 0

    def _tell(self, what: Any) -> None:
        with suppress(BrokenPipeError):  # it died: waiting tells how
            self._control.sendall((json.dumps(what) + "\n").encode())

    def _until_still(self, patience: float, doing: str) -> float:
        """The time at which the child stopped; Ended if it did not stop or reported a failure."""
        hung = threading.Event()

        def kill() -> None:
            hung.set()
            self._process.kill()

        watch = threading.Timer(patience, kill)
        watch.start()
        try:
            _, status = os.waitpid(self._process.pid, os.WUNTRACED)
        finally:
            moment = time.perf_counter()
            watch.cancel()
        if not os.WIFSTOPPED(status):
            self._process.returncode = os.waitstatus_to_exitcode(status)
            self._listen()
            raise self._end(hung.is_set(), patience, doing)
        for kind, what in self._listen():
            if kind == "sandbox":  # the first message, before there is a candidate
                self.sandbox = self.sandbox or tuple((name, said) for name, said in what)
            elif kind == "runs" and what in RUNS:
                self.notes = (RUNS[what],)
            elif kind in ("failed", "wrong"):
                raise Ended("raised" if kind == "failed" else kind, _clean(str(what)))
        return moment

    def _listen(self) -> list[Any]:
        """The child's next message, which may be anything."""
        self._control.setblocking(False)
        with suppress(BlockingIOError, ConnectionError):
            while len(self._unread) < MOST_SAID and (more := self._control.recv(2**16)):
                self._unread += more
        self._control.setblocking(True)
        *lines, self._unread = self._unread.split(b"\n")
        found = []
        for line in lines:
            with suppress(ValueError, RecursionError):
                said = json.loads(line)
                if isinstance(said, list) and len(said) == 2:
                    found.append(said)
        return found

    def _end(self, hung: bool, patience: float, doing: str) -> Ended:
        code = self._process.returncode
        if hung:
            return Ended("hung", f"{doing} took more than {patience:g} s")
        if code < 0:
            name = signal.Signals(-code).name
            return Ended("crashed", f"{doing} ended with {name}{self._last()}", -code)
        return Ended("crashed", f"{doing} ended the process with exit status {code}{self._last()}")

    def _last(self) -> str:
        """The last line that the child printed."""
        self._printed.seek(0, os.SEEK_END)
        self._printed.seek(max(0, self._printed.tell() - COMPLAINTS))
        lines = self._printed.read(COMPLAINTS).decode(errors="replace").strip().splitlines()
        return f": {_clean(lines[-1])}" if lines else ""

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    def close(self) -> None:
        """Kill the child and release its memory and folder."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if self.alive:
            self._process.kill()
            self._process.wait()
        self._control.close()
        self._printed.close()
        self.inputs.close()
        self.outputs.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _clean(text: str) -> str:
    """A message of the child as one printable line."""
    return "".join(c if c.isprintable() else " " for c in text)[:1000]


def layout_of(
    child: Child, op: Op, shape: Mapping[str, int], format: str | None, inputs: Arguments,
    places: Sequence[int], rng: np.random.Generator,
) -> Call:  # fmt: skip
    """Map a call's arrays at these places in turn; its scalars are those of the op, its sizes and
    its weight format."""
    boundary, place = child.candidate.manifest.align, cycle(places)

    def slot(side: Side, dims: Sequence[int], dtype: Any) -> Slot:
        return side.slot(dims, dtype, next(place), rng, boundary or np.dtype(dtype).itemsize)

    arrays = {a.name: inputs[a.name] for a in op.inputs if a.axes}
    scalars = {a.name: inputs[a.name] for a in op.inputs if not a.axes}
    scalars = {n: v.item() if hasattr(v, "item") else v for n, v in scalars.items()}
    scalars |= {name: int(size) for axis, size in shape.items() for name in size_names(op, axis)}
    if format:
        scalars["format"] = format
    return Call(
        {name: slot(child.inputs, a.shape, a.dtype) for name, a in arrays.items()},
        {
            o.name: slot(child.outputs, o.dims(shape, format), DTYPES.get(o.dtype, np.uint8))
            for o in op.outputs
        },
        scalars | child.candidate.further_arguments(op, shape),
    )
