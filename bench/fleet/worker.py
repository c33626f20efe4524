"""What runs on a worker, around every share: who it is, whether it may go on, and what it found, as
that travels: bytes with their digest."""

import hashlib
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from bench.child import started
from kernels.child import environment

ALONE = "assay"  # Dask's resource: one share at a time on a worker, whoever asks
TICK = 0.2  # seconds between two looks at whether a child has ended, or should

S = TypeVar("S")
_stopped: set[str] = set()


class CorruptedError(ValueError):
    """A result whose bytes are not those that its worker sent."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """What a worker found for a share; `digest` is sha256 of `payload`."""

    worker: str
    digest: str
    payload: bytes

    @classmethod
    def of(cls, worker: str, found: Any) -> "Sealed":
        payload = pickle.dumps(found, protocol=5)
        return cls(worker, hashlib.sha256(payload).hexdigest(), payload)

    def opened(self) -> Any:
        """What was found. Raises `CorruptedError` before anything is made of wrong bytes."""
        if hashlib.sha256(self.payload).hexdigest() != self.digest:
            raise CorruptedError("its result is not what it sent: the digest is another")
        return pickle.loads(self.payload)


class StoppedError(RuntimeError):
    """Whoever asked does not want it any more."""


class WorkerError(RuntimeError):
    """A worker that cannot do its share, though another may: where it is, and why not."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address, self.reason = address, reason


async def offer(asked: str, dask_worker: Any) -> None:
    """Take shares of what is asked under this name, one at a time."""
    await dask_worker.set_resources(**{ALONE: 1, asked: 1})


async def end(asked: str, dask_worker: Any) -> None:
    """Take none any more; those that run end."""
    stop(asked)
    await dask_worker.set_resources(**{asked: 0})


def stop(asked: str) -> None:
    """What was asked under this name ends."""
    _stopped.add(asked)


def address() -> str:
    """Of the worker that runs this."""
    from distributed import get_worker

    return str(get_worker().address)


def threads() -> int:
    """As many as the worker was started with."""
    from distributed import get_worker

    return int(get_worker().state.nthreads)


def demand_wanted(asked: str) -> None:
    """Raise `StoppedError` if the result is not wanted any more."""
    if asked in _stopped:
        raise StoppedError(asked)


def wanted(asked: str, found: Iterable[S]) -> Iterator[S]:
    """These one by one, as long as the result is wanted."""
    for one in found:
        demand_wanted(asked)
        yield one


def do(job: Callable[[S, str], Any], share: S, asked: str) -> Sealed:
    """A share of a job, sealed."""
    demand_wanted(asked)
    return Sealed.of(address(), job(share, asked))


def child(
    words: Sequence[str],
    asked: str,
    more: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> "subprocess.CompletedProcess[str]":
    """Python with these words, in a process group that ends when the result is not wanted."""
    env = {**environment(), **(more or {})}
    with started([sys.executable, "-P", *words], env, folder) as process:
        while True:
            with suppress(subprocess.TimeoutExpired):
                out, err = process.communicate(timeout=TICK)
                return subprocess.CompletedProcess(words, process.returncode, out, err)
            demand_wanted(asked)


def watching(asked: str) -> Callable[..., None]:
    """For whoever tells how far it is: raises `StoppedError` when the result is not wanted."""
    return lambda *_: demand_wanted(asked)


def last_line(text: str) -> str:
    """Of what a program said; "" if it said nothing."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
