"""Certify kernels in a child process, so that one which crashes or hangs is found, not suffered.

What takes the place of a GPU is this process's own, so what runs on it is tried here.
"""

import json
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from kernels.certificates import Certificate, Key, Store
from kernels.cuda.current import current
from kernels.cuda.device import EMULATED
from kernels.cuda.kernel import CudaKernel
from kernels.table import find_any
from kernels.trial import CASES, Request, answered

PATIENCE = 180.0  # seconds without a word after which a trial counts as hung
FAREWELL = 10.0  # seconds that a child has to end when it is killed
Certified = Callable[[int, Certificate], None]  # how many are tried, and each outcome


def certify(
    requests: Sequence[Request],
    store: Store,
    progress: Certified | None = None,
    patience: float = PATIENCE,
    program: Sequence[str] = ("kernels.trial",),
    until: float = math.inf,
) -> None:
    """Try what is asked for and keep the certificates.

    A kernel that crashes or hangs the child gets a failed certificate, and a new child goes on
    with the rest. `progress` is told of each certificate as it comes; `program` is the module that
    the child runs, with its arguments; what is not done by the moment `until`, of time.monotonic(),
    has no certificate.
    """

    def keep(certificate: Certificate) -> None:
        store.add([certificate])
        if progress:
            progress(len(requests), certificate)

    store.ready()
    for request in filter(_emulated, requests):
        kernel = find_any(request.kernel)
        keep(replace(answered(kernel, request), level=EMULATED))
    waiting = [request for request in requests if not _emulated(request)]
    while waiting and time.monotonic() < until:
        for certificate in _trials(waiting, patience, program, until):
            keep(certificate)
            waiting.pop(0)


def _emulated(request: Request) -> bool:
    return isinstance(find_any(request.kernel), CudaKernel) and current().emulated


def _trials(
    requests: Sequence[Request], patience: float, program: Sequence[str], until: float
) -> Iterator[Certificate]:
    """The certificates of one child, until it is done, dies or hangs: at least one, if there is
    time for it."""
    paths = os.pathsep.join(p for p in sys.path if p)
    child = subprocess.Popen(
        [sys.executable, "-m", *program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    lines: queue.Queue[str | None] = queue.Queue()
    complaints: list[str] = []
    readers = [
        threading.Thread(target=_read_lines, args=(child.stdout or [], lines), daemon=True),
        threading.Thread(target=lambda: complaints.extend(child.stderr or []), daemon=True),
    ]
    for reader in readers:
        reader.start()
    pending, hung, late, trying = list(requests), False, False, ""
    try:
        assert child.stdin is not None
        with child.stdin:
            child.stdin.write("".join(f"{request.line()}\n" for request in requests))
    except BrokenPipeError:
        pass  # it died at once: its exit status says how
    try:
        while line := lines.get(timeout=max(0.0, min(patience, until - time.monotonic()))):
            said = json.loads(line)
            trying = said.get("trying", "")
            if not trying:
                yield Certificate(**said["certificate"])
                pending.pop(0)
    except queue.Empty:
        late = time.monotonic() >= until
        hung = not late
    finally:
        status = _ended(child, readers, kill=hung or late)
    if pending and not late:
        failure = f"did not finish within {patience:g} s" if hung else _death(status, complaints)
        yield _failed(pending[0], failure + (f" (again: {trying})" if trying else ""))


def _ended(
    child: subprocess.Popen[str], readers: Sequence[threading.Thread], kill: bool
) -> int | None:
    """Its status, or None of one that cannot be killed: a call into a driver may never end."""
    if kill:
        child.kill()
    try:
        status = child.wait(FAREWELL if kill else None)
    except subprocess.TimeoutExpired:
        return None
    for reader in readers:
        reader.join()
    for stream in filter(None, (child.stdout, child.stderr)):
        stream.close()
    return status


def _read_lines(stream: Iterable[str], lines: "queue.Queue[str | None]") -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def _death(status: int | None, complaints: Sequence[str]) -> str:
    if status and status < 0:
        return f"took the process down with {signal.Signals(-status).name}"
    last = complaints[-1].strip() if complaints else "no message"
    return f"stopped its trial: {last[:300]}"


def _failed(request: Request, failure: str) -> Certificate:
    when = datetime.now(UTC).isoformat(timespec="seconds")
    key = Key.of(find_any(request.kernel)).digest
    return Certificate(request.kernel, key, request.level, 0, -1.0, -1.0, 0.0, when, failure, CASES)
