"""Code on a worker around every share: identity, cancellation, and results as bytes with a
digest."""

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
TICK = 0.2  # seconds between two checks whether a child has ended, or should

S = TypeVar("S")
_stopped: set[str] = set()


class CorruptedError(ValueError):
    """A result whose bytes are not those that its worker sent."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """A worker's result for a share; `digest` is sha256 of `payload`."""

    worker: str
    digest: str
    payload: bytes

    @classmethod
    def of(cls, worker: str, found: Any) -> "Sealed":
        payload = pickle.dumps(found, protocol=5)
        return cls(worker, hashlib.sha256(payload).hexdigest(), payload)

    def opened(self) -> Any:
        """The result. Raises `CorruptedError` before anything is made of corrupt bytes."""
        if hashlib.sha256(self.payload).hexdigest() != self.digest:
            raise CorruptedError("its result is not what it sent: the digest is another")
        return pickle.loads(self.payload)


class StoppedError(RuntimeError):
    """The result is not wanted any more."""


class WorkerError(RuntimeError):
    """A worker that cannot do its share, though another may: its address and the reason."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address, self.reason = address, reason


async def offer(asked: str, dask_worker: Any) -> None:
    """Accept shares of the job of this name, one at a time."""
    await dask_worker.set_resources(**{ALONE: 1, asked: 1})


async def end(asked: str, dask_worker: Any) -> None:
    """Accept no more shares; running ones end."""
    stop(asked)
    await dask_worker.set_resources(**{asked: 0})


def stop(asked: str) -> None:
    """Cancel the job of this name."""
    _stopped.add(asked)


def address() -> str:
    """The address of the worker that runs this."""
    from distributed import get_worker

    return str(get_worker().address)


def threads() -> int:
    """The number of threads that the worker was started with."""
    from distributed import get_worker

    return int(get_worker().state.nthreads)


def demand_wanted(asked: str) -> None:
    """Raise `StoppedError` if the result is not wanted any more."""
    if asked in _stopped:
        raise StoppedError(asked)


def wanted(asked: str, found: Iterable[S]) -> Iterator[S]:
    """Yield these one by one, as long as the result is wanted."""
    for one in found:
        demand_wanted(asked)
        yield one


def do(job: Callable[[S, str], Any], share: S, asked: str) -> Sealed:
    """Run a share of a job and seal the result."""
    demand_wanted(asked)
    return Sealed.of(address(), job(share, asked))


def child(
    words: Sequence[str],
    asked: str,
    more: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> "subprocess.CompletedProcess[str]":
    """Run Python with these arguments, in a process group that ends when the result is not
    wanted."""
    env = {**environment(), **(more or {})}
    with started([sys.executable, "-P", *words], env, folder) as process:
        while True:
            with suppress(subprocess.TimeoutExpired):
                out, err = process.communicate(timeout=TICK)
                return subprocess.CompletedProcess(words, process.returncode, out, err)
            demand_wanted(asked)


def watching(asked: str) -> Callable[..., None]:
    """A progress callback that raises `StoppedError` when the result is not wanted."""
    return lambda *_: demand_wanted(asked)
