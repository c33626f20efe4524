"""Certifies kernels in child processes, so that a crash or a hang is a finding and not our own.

An emulated GPU lives in this process, so its kernels are tried here.
"""

import json
import math
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from kernels.call import emulated
from kernels.certificates import Certificate, Key, Store
from kernels.child import environment
from kernels.cpu.runtime.cores import allowed_cores
from kernels.cuda.runtime.device import EMULATED
from kernels.provenance import EditedError
from kernels.table import find_any
from kernels.trial import CONSTRUCTION, Request, answered

PATIENCE = 180.0  # seconds without a message after which a trial counts as hung
FAREWELL = 10.0  # seconds that a killed child has to end
CHILDREN = 4  # at most, and no more than there are cores: they compile, too
ENDED = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)  # from outside: no kernel's failure
TICK = 2.0  # seconds at most between two reports of progress
# Ops whose kernels take longest to compile, so that none is left to a single process at the end.
LONGEST = "attention", "sparse_linear", "linear", "sparse_axpy"


@dataclass(frozen=True, slots=True)
class Trials:
    """Progress of a batch of trials: how many there are and are done, the kernels being compiled
    and tried now, and the certificate that just arrived, if one did."""

    total: int
    done: int
    trying: tuple[str, ...]
    certificate: Certificate | None = None

    def __str__(self) -> str:
        now = f": {', '.join(self.trying)}" if self.trying else ""
        return f"compiling and trying kernels, {self.done} of {self.total}{now}"


Certified = Callable[[Trials], None]


class TrialError(RuntimeError):
    """A trial was killed from outside, such as by a system out of memory."""


def certify(
    requests: Sequence[Request],
    store: Store,
    progress: Certified | None = None,
    patience: float = PATIENCE,
    program: Sequence[str] = ("kernels.trial",),
    until: float = math.inf,
    at_once: int = CHILDREN,
) -> None:
    """Run the requested trials and store the certificates.

    A kernel that crashes or hangs its child gets a failed certificate, and a new child continues
    with the rest. `progress` receives each certificate as it arrives, and in between the state;
    `program` is the module that children run, with its arguments, so many `at_once`; trials not
    finished by `until`, of time.monotonic(), get no certificate.
    """
    done = 0

    def tell(certificate: Certificate | None = None) -> None:
        trying = tuple(child.request.kernel for child in children if child.request)
        if progress:
            progress(Trials(len(requests), done, trying, certificate))

    def keep(certificate: Certificate) -> None:
        nonlocal done
        store.add([certificate])
        done += 1
        tell(certificate)

    store.ready()
    waiting: deque[Request] = deque()
    lines: queue.Queue[tuple[_Child, str]] = queue.Queue()
    children: list[_Child] = []
    for request in sorted(requests, key=_length):
        if emulated(kernel := find_any(request.kernel)):
            keep(replace(answered(kernel, request), level=EMULATED))
        else:
            waiting.append(request)
    try:
        while (waiting or children) and time.monotonic() < until:
            while waiting and len(children) < min(at_once, len(allowed_cores())):
                children.append(_Child(program, lines, waiting.popleft()))
                tell()
            end = min(until, *(child.heard + patience for child in children))
            try:
                child, line = lines.get(timeout=max(0.0, min(TICK, end - time.monotonic())))
            except queue.Empty:
                tell()
                if end <= time.monotonic() < until:
                    child = min(children, key=lambda child: child.heard)
                    child.end(kill=True)
                    children.remove(child)
                    keep(child.failed(f"did not finish within {patience:g} s"))
                continue
            if child not in children:
                continue  # the last message of one that hung
            if not line:
                children.remove(child)
                status = child.end()
                if child.request:
                    keep(child.failed(_death(status, child.complaints)))
            elif certificate := child.parsed(line):
                child.ask(waiting.popleft() if waiting else None)
                keep(certificate)
    finally:
        for child in children:
            child.end(kill=True)


def _length(request: Request) -> int:
    """Sort key: the longest trials come first."""
    op = find_any(request.kernel).op
    return LONGEST.index(op) if op in LONGEST else len(LONGEST)


class _Child:
    """A process that runs one request after the other; `heard` is the time of its last message."""

    def __init__(
        self, program: Sequence[str], lines: "queue.Queue[tuple[_Child, str]]", first: Request
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # references multiply small matrices; other children want the cores
            env={**environment(), "OPENBLAS_NUM_THREADS": "1"},
        )
        self.complaints: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(lines,), daemon=True),
            threading.Thread(target=self._read_complaints, daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        self.ask(first)

    def _read(self, lines: "queue.Queue[tuple[_Child, str]]") -> None:
        for line in self._process.stdout or ():
            lines.put((self, line))
        lines.put((self, ""))

    def _read_complaints(self) -> None:
        self.complaints.extend(self._process.stderr or ())

    def ask(self, request: Request | None) -> None:
        """Send the next request, or None: there are no more."""
        self.request, self.heard = request, time.monotonic()
        self._stage, self._again = CONSTRUCTION, ""
        assert self._process.stdin is not None
        try:
            if request:
                self._process.stdin.write(request.line() + "\n")
                self._process.stdin.flush()
            else:
                self._process.stdin.close()
        except BrokenPipeError:
            pass  # it died: its exit status tells how

    def parsed(self, line: str) -> Certificate | None:
        """Its message: the requested certificate, or only what it tries now; the partial line of a
        dying child is ignored."""
        self.heard = time.monotonic()
        try:
            said = json.loads(line)
        except ValueError:
            return None
        if trying := said.get("trying"):
            self._stage, self._again = trying
            return None
        return Certificate.parse(said["certificate"])

    def failed(self, failure: str) -> Certificate:
        """The failed certificate of what it was trying."""
        assert self.request is not None
        again = f" (again: {self._again})" if self._again else ""
        return Certificate(
            kernel=self.request.kernel,
            key=Key.of(find_any(self.request.kernel)).digest,
            level=self.request.level,
            cases=0,
            worst=-1.0,
            nmse=-1.0,
            seconds=0.0,
            when=datetime.now(UTC).isoformat(timespec="seconds"),
            failure=failure + again,
            stage=self._stage,
        )

    def end(self, kill: bool = False) -> int | None:
        """Kill it; returns its status, or None if it cannot be killed: a call into a driver may
        never end."""
        if kill:
            self._process.kill()
        try:
            status = self._process.wait(FAREWELL)
        except subprocess.TimeoutExpired:
            return None if kill else self.end(kill=True)
        for reader in self._readers:
            reader.join(FAREWELL)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            with suppress(BrokenPipeError):
                assert stream is not None
                stream.close()
        return status


def _death(status: int | None, complaints: Sequence[str]) -> str:
    if complaints and EditedError.__name__ in complaints[-1]:
        raise EditedError(complaints[-1].partition(": ")[2].strip())
    if status is not None and -status in ENDED:
        raise TrialError(f"a trial of kernels was ended by {signal.Signals(-status).name}")
    if status and status < 0:
        return f"took the process down with {signal.Signals(-status).name}"
    last = complaints[-1].strip() if complaints else "no message"
    return f"stopped its trial: {last[:300]}"
