"""Shares dealt to the workers of a Dask cluster, and what becomes of them.

Dask places each share and does it again when its worker dies; here is which workers may have any,
how many shares are under way, and what is said.
"""

import logging
import queue
import secrets
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any, TypeVar

from bench.fleet.about import About, about
from bench.fleet.files import PART, Named, has, keep
from bench.fleet.sealed import CorruptedError, Sealed
from bench.fleet.worker import ALONE, WorkerError, do, offer, stop
from engine.closing import Closing

if TYPE_CHECKING:
    from distributed import Future

S = TypeVar("S")
Job = Callable[[S, str], Any]

SOON = 5.0  # seconds that a scheduler has to answer, and a worker to hand over a result
GOODBYE = 30.0  # seconds that workers of this machine have to end
PATIENCE = 60.0  # seconds without a worker before nothing more is waited for
TICK = 0.2  # seconds between two looks at who came and who went
EACH = 2  # shares under way for each worker: one that it does, one that waits there
AHEAD = 8  # shares for each worker beyond the oldest that is under way: results wait in memory
DEATHS = "KilledWorker", "FutureCancelledError", "CancelledError"
TRIES = 10  # of a share whose workers die or send what is damaged
STRIKES = 3  # damaged results after which a worker gets no share any more


class FleetError(RuntimeError):
    """What stops a fleet, in one plain line."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A worker that was accepted."""

    address: str
    name: str
    about: About

    @property
    def place(self) -> tuple[str, str, str]:
        """What workers of one machine have in common: host, folder of certificates, CPU."""
        return self.about.host, self.about.cache, self.about.machine


@dataclass(slots=True)
class _Share:
    """One under way."""

    number: int
    job: Job[Any]
    share: Any
    machine: str = ""  # the address, if it is for one alone
    tries: int = 0


class Fleet(Closing):
    """A Dask cluster's workers, as far as they run what this process runs.

    `note` is told, in a line each, of workers that are refused, that go and that come, and of
    shares that are done again. `files` have to be readable, or are sent. `close` ends what is under
    way.
    """

    def __init__(
        self, scheduler: str, note: Callable[[str], None], files: Sequence[Named] = ()
    ) -> None:
        from distributed import Client

        _silence()
        self.asked, self.note, self.files = secrets.token_hex(8), note, tuple(files)
        self.machines: dict[str, Machine] = {}
        self.refused: dict[str, str] = {}  # address: why
        self._own, self._kinds = about(), set[str]()  # of CPUs whose bits agree; none: any may come
        self._strikes: dict[str, int] = {}
        self._until = time.monotonic() + PATIENCE  # for a worker to come, where there is none
        self._under_way: dict[Future, _Share] = {}
        self._done: queue.Queue[Future] = queue.Queue()
        self._events: queue.Queue[Mapping[str, Any]] = queue.Queue()
        self._scheduler = scheduler
        _demand_scheduler(scheduler)
        try:
            self._client = Client(scheduler, timeout=SOON, set_as_default=False)
        except OSError:
            raise FleetError(f"{scheduler}: who answers there is no Dask scheduler") from None
        try:
            self._client.subscribe_topic("all", lambda event: self._events.put(event[1]))
            self._vet(self._present())
        except BaseException:
            self.close()
            raise
        if not self.machines:
            self.close()
            why = next(iter(self.refused.values()), "it has no worker yet")
            raise FleetError(f"{self._scheduler}: no worker can be used: {why}")

    def _present(self) -> dict[str, Any]:
        return dict(self._client.scheduler_info(n_workers=-1)["workers"])

    # Who may have a share.

    def _vet(self, present: Mapping[str, Any]) -> None:
        """Ask new workers who they are; accept those that run what this process runs and have the
        files."""
        new = [a for a in present if a not in self.machines and a not in self.refused]
        if not new:
            return
        told = self._client.run(about, workers=new, on_error="return")
        for address in new:
            named = str(present[address].get("name", address))
            name = address if named == address else f"{named} at {address}"
            match found := told.get(address):
                case About() if self._kinds and found.machine not in self._kinds:
                    why = "its bits were not compared: no CPU of its kind was there at first"
                case About():
                    why = self._own.differs(found)
                case OSError() | None:
                    continue  # it has gone meanwhile
                case _ if "ModuleNotFoundError" in repr(found):  # as Dask hands it on
                    why = "it has no assay, or one without fleets"
                case _:
                    why = f"{type(found).__name__}: {found}"
            if why:
                self._refuse(address, name, why)
            else:
                self.machines[address] = Machine(address, name, found)
        self._supply([a for a in new if a in self.machines])
        accepted = [a for a in new if a in self.machines]
        if accepted:
            self._client.run(offer, self.asked, 1, workers=accepted, on_error="return")

    def _refuse(self, address: str, name: str, why: str) -> None:
        self.refused[address] = f"{name}: {' '.join(why.split())}"
        self.machines.pop(address, None)
        self.note(f"{self.refused[address]}: it gets no share")

    def _withdraw(self, address: str, why: str) -> None:
        """A worker that was accepted gets nothing any more."""
        if machine := self.machines.get(address):
            self._refuse(address, machine.name, why)
            self._client.run(offer, self.asked, 0, workers=[address], on_error="return")

    def _supply(self, addresses: Sequence[str]) -> None:
        """Send files to each place that lacks them, once."""
        for file in self.files if addresses else ():
            there = self._client.run(has, file, workers=[*addresses], on_error="return")
            lacking = [a for a in addresses if there.get(a) is not True]
            places = {self.machines[a].place[:2]: a for a in lacking}
            for address in places.values():
                if why := self._send(file, address):
                    place = self.machines[address].place[:2]
                    for one in [a for a in lacking if self.machines[a].place[:2] == place]:
                        self._refuse(one, self.machines[one].name, why)
            rest = [a for a in lacking if a in self.machines]
            there = self._client.run(has, file, workers=rest, on_error="return") if rest else {}
            for address in rest:
                if there.get(address) is not True:
                    why = f"it cannot read {file.path.name}"
                    self._refuse(address, self.machines[address].name, why)
            addresses = [a for a in addresses if a in self.machines]

    def _send(self, file: Named, address: str) -> str:
        """Why a worker cannot have it, or ""."""
        with file.path.open("rb") as data:
            for offset in range(0, max(file.size, 1), PART):
                part = data.read(PART)
                found = self._client.run(
                    keep, file, offset, part, workers=[address], on_error="return"
                )
                if why := found.get(address, "it has gone"):
                    return f"{file.path.name} cannot be sent there: {why}"
        return ""

    def agree(self, job: Job[S], share: S) -> None:
        """Where machines are of several kinds, one of each does the same share; a kind whose bits
        are not those of the most common one gets nothing more."""
        kinds: dict[str, list[Machine]] = {}
        for machine in self.machines.values():
            kinds.setdefault(machine.about.machine, []).append(machine)
        ordered = sorted(kinds.values(), key=lambda m: (-len(m), m[0].about.machine))
        self._kinds = {machine.about.machine for machine in self.machines.values()}
        if len(ordered) < 2:
            return
        first = [several[0] for several in ordered]
        digests = {m.address: sealed.digest for m, sealed, _ in self._at(first, job, share)}
        wanted = digests.get(first[0].address)
        for machine in first[1:]:
            if wanted and digests.get(machine.address, wanted) != wanted:
                self._kinds.discard(kind := machine.about.machine)
                for one in kinds[kind]:
                    why = f"its bits are not those of {first[0].about.device} ({first[0].name})"
                    self._withdraw(one.address, why)

    # What is under way.

    def _start(self, one: _Share) -> None:
        one.tries += 1
        future = self._client.submit(
            do, one.job, one.share, self.asked,
            pure=False,
            resources={ALONE: 1, self.asked: 1},
            workers=[one.machine] if one.machine else None,
        )  # fmt: skip
        self._under_way[future] = one
        future.add_done_callback(self._done.put)

    def _finished(self) -> Iterator[tuple[_Share, Sealed, Any]]:
        """What is done, after a moment at most; shares that came to nothing begin again."""
        self._look()
        try:
            future = self._done.get(timeout=TICK)
        except queue.Empty:
            return
        if (one := self._under_way.get(future)) is None:
            return
        if future.status != "finished":
            self._under_way.pop(future)
            self._failed(one, future.exception(timeout=SOON) if future.status == "error" else None)
            return
        try:
            sealed = future.result(timeout=SOON)
        except TimeoutError:  # who had it is gone, and it is done again
            future.add_done_callback(self._done.put)
            return
        self._under_way.pop(future)
        try:
            yield one, sealed, sealed.opened()
        except CorruptedError as error:
            self._damaged(one, sealed.worker, str(error))

    def _damaged(self, one: _Share, address: str, why: str) -> None:
        self._strikes[address] = self._strikes.get(address, 0) + 1
        self.note(f"{self._name(address)}: {why}; share {one.number + 1} is done again")
        if self._strikes[address] >= STRIKES:
            self._withdraw(address, "too many results were damaged")
        self._again(one, why)

    def _failed(self, one: _Share, error: BaseException | None) -> None:
        """Of a share that took several workers down Dask says KilledWorker, of a lost one nothing;
        what a share itself raises stops the fleet."""
        if isinstance(error, WorkerError):
            self._withdraw(error.address, error.reason)
            self._again(one, error.reason)
        elif error is None or type(error).__name__ in DEATHS:
            self._again(one, "its workers died")
        elif one.machine:  # its own trouble
            self.note(f"{self._name(one.machine)}: {_line(error)}")
        else:
            raise FleetError(_line(error)) from None

    def _again(self, one: _Share, why: str) -> None:
        if one.machine and one.machine not in self.machines:
            return
        if one.tries >= TRIES:
            raise FleetError(f"share {one.number + 1} failed {TRIES} times: {why}")
        self._start(one)

    def _name(self, address: str) -> str:
        return self.machines[address].name if address in self.machines else address

    def _look(self) -> None:
        """Who came and who went since the last look."""
        if self._client.status != "running":
            raise FleetError("the scheduler is gone")
        came = went = False
        while True:
            try:
                event = self._events.get_nowait()
            except queue.Empty:
                break
            came |= event.get("action") == "add-worker"
            if event.get("action") == "remove-worker":
                went = True
                self._gone(event["worker"], event)
        if came:
            self._vet(self._present())
        if (came or went) and self.machines:
            self._rescue()
        if self.machines:
            self._until = time.monotonic() + PATIENCE
        elif time.monotonic() > self._until:
            why = next(reversed(self.refused.values()), "all are gone")
            raise FleetError(f"{self._scheduler}: no worker is left: {why}")

    def _rescue(self) -> None:
        """Dask leaves a share where it is if no worker could have it when it was placed, though one
        can now."""
        held = {key for keys in self._client.processing().values() for key in keys}
        for future, one in [*self._under_way.items()]:
            if future.status == "pending" and future.key not in held and not one.machine:
                self._under_way.pop(future)
                future.cancel()
                one.tries -= 1
                self._start(one)

    def _gone(self, address: str, event: Mapping[str, Any]) -> None:
        machine = self.machines.pop(address, None)
        if machine is None:
            return
        lost = {*event.get("processing-tasks", ()), *event.get("lost-computed-tasks", ())}
        shares = [(f, one) for f, one in self._under_way.items() if f.key in lost]
        alone = [future for future, one in shares if one.machine]
        for future in alone:
            self._under_way.pop(future)
            future.cancel()
        again = len(shares) - len(alone)
        told = f"; {again} share{'s' * (again > 1)} of its are done again" if again else ""
        told += "; what it was to do by itself is not done" if alone else ""
        self.note(f"{machine.name} is gone{told}")

    def deal(self, job: Job[S], shares: Iterable[S]) -> Iterator[tuple[int, Any]]:
        """What a job finds for each share, with the share's number, in the order of the shares.

        Few are under way at a time, and few results wait for an earlier one. A share whose worker
        dies is done again by another.
        """
        coming, waiting = enumerate(shares), dict[int, Any]()
        following, oldest, more = 0, 0, True
        while more or self._under_way or waiting:
            here = max(1, len(self.machines))
            while more and len(self._under_way) < EACH * here and following < oldest + AHEAD * here:
                if (share := next(coming, None)) is None:
                    more = False
                else:
                    following += 1
                    self._start(_Share(share[0], job, share[1]))
            for done, _, found in self._finished():
                waiting[done.number] = found
            while oldest in waiting:
                yield oldest, waiting.pop(oldest)
                oldest += 1

    def everywhere(self, job: Job[S], share: S) -> Iterator[tuple[Machine, Any]]:
        """What a job finds on each machine, on one worker of each and alone there: of workers on
        one host, in turns."""
        places = {machine.place: machine for machine in reversed([*self.machines.values()])}
        for machine, _, found in self._at([*places.values()], job, share):
            yield machine, found

    def _at(
        self, machines: Sequence[Machine], job: Job[S], share: S
    ) -> Iterator[tuple[Machine, Sealed, Any]]:
        hosts: dict[str, deque[Machine]] = {}
        for machine in machines:
            hosts.setdefault(machine.about.host, deque()).append(machine)
        known = {machine.address: machine for machine in machines}
        while self._under_way or any(hosts.values()):
            busy = {known[one.machine].about.host for one in self._under_way.values()}
            for host, several in hosts.items():
                if several and host not in busy:
                    machine = several.popleft()
                    if machine.address in self.machines:
                        self._start(_Share(0, job, share, machine.address))
            for one, sealed, found in self._finished():
                yield known[one.machine], sealed, found

    def close(self) -> None:
        """End what is under way, here and on the workers."""
        with suppress(Exception):
            if self._under_way:
                self._client.cancel([*self._under_way])
            if self.machines:
                self._client.run(stop, self.asked, on_error="ignore")
                self._client.run(offer, self.asked, 0, on_error="ignore")
        self._under_way.clear()
        with suppress(Exception):
            self._client.close(timeout=SOON)


@contextmanager
def local(workers: int) -> Iterator[Any]:
    """A cluster of processes on this machine, which share its cores. Ctrl-C is this process's
    alone: workers are started with the signal held back, and end with who started them."""
    from distributed import LocalCluster

    from kernels.cpu.runtime.cores import allowed_cores

    resource_tracker.ensure_running()  # which would let the signal through, were it started later
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    cluster = None
    try:
        try:
            cluster = LocalCluster(
                n_workers=workers,
                threads_per_worker=max(1, len(allowed_cores()) // workers),
                processes=True,
                dashboard_address="127.0.0.1:0",
                memory_limit=0,  # a model's pages would count
                silence_logs=logging.CRITICAL,
            )
            _silence()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield cluster
    finally:
        if cluster is not None:
            with suppress(Exception):
                cluster.close(timeout=GOODBYE)


def _demand_scheduler(address: str) -> None:
    """Raise `FleetError` if nobody listens there: Dask's own client would wait for long."""
    from distributed.comm.addressing import get_address_host_port

    try:
        socket.create_connection(get_address_host_port(address), SOON).close()
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise FleetError(f"{address}: no Dask scheduler answers there: {reason}") from None


def _silence() -> None:
    """What Dask says of workers that go is said here, in one line."""
    logging.getLogger("distributed").handlers[:] = [logging.NullHandler()]


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
