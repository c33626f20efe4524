"""Distributes shares to the workers of a Dask cluster.

Dask places each share and repeats it if its worker dies; this decides which workers are accepted,
how many shares are in flight, and what is reported.
"""

import queue
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from bench.fleet.about import About, about
from bench.fleet.cluster import SOON, FleetError, ask, reached
from bench.fleet.files import PART, Named, has, keep
from bench.fleet.worker import ALONE, CorruptedError, Sealed, WorkerError, do, end, offer
from bench.report.words import plural
from engine.closeable import Closeable

if TYPE_CHECKING:
    from distributed import Future

S = TypeVar("S")
Job = Callable[[S, str], Any]

PATIENCE = 60.0  # seconds without a worker before giving up
ANSWER = 30.0  # seconds for a worker to describe itself, and its files
SLOWEST = 2e7  # bytes a second of the slowest disk or network for a file
TICK = 0.2  # seconds between two updates of the list of workers
EACH = 2  # shares in flight per worker: one running, one queued there
AHEAD = 8  # shares per worker beyond the oldest in flight: results wait in memory
DEATHS = "KilledWorker", "FutureCancelledError", "CancelledError"
TRIES = 10  # attempts at a share whose workers die or send corrupt results
STRIKES = 3  # corrupt results after which a worker is withdrawn


@dataclass(frozen=True, slots=True)
class Machine:
    """An accepted worker."""

    address: str
    name: str
    about: About

    @property
    def place(self) -> tuple[str, str, str]:
        """What workers of one machine have in common: host, folder of certificates, CPU."""
        return self.about.host, self.about.cache, self.about.machine


@dataclass(slots=True)
class _Share:
    """A share in flight."""

    number: int
    job: Job[Any]
    share: Any
    machine: str = ""  # the address, if it is for one worker alone
    tries: int = 0


class Fleet(Closeable):
    """A Dask cluster's workers that run the same code as this process.

    `note` receives one line for each worker that is refused, leaves or arrives, and for shares that
    are repeated. `files` must be readable there, or are sent. `close` cancels what is in flight.
    """

    def __init__(
        self, scheduler: str, note: Callable[[str], None], files: Sequence[Named] = ()
    ) -> None:
        self.asked, self.note, self.files = secrets.token_hex(8), note, tuple(files)
        self.machines: dict[str, Machine] = {}
        self.refused: dict[str, str] = {}  # address: reason
        self._own = about()
        self._kinds = set[str]()  # CPUs that were compared; none: any is accepted
        self._strikes: dict[str, int] = {}
        self._until = time.monotonic() + PATIENCE  # waiting for the first worker
        self._under_way: dict[Future, _Share] = {}
        self._done: queue.Queue[Future] = queue.Queue()
        self._events: queue.Queue[Mapping[str, Any]] = queue.Queue()
        self._scheduler = scheduler
        self._client = reached(scheduler)
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

    # Workers that may have a share.

    def _vet(self, present: Mapping[str, Any]) -> None:
        """Query new workers; accept those that run the same code and have the files."""
        new = [a for a in present if a not in self.machines and a not in self.refused]
        if not new:
            return
        told = ask(self._client, new, ANSWER, about)
        for address in new:
            named = str(present[address].get("name", address))
            name = address if named == address else f"{named} at {address}"
            match found := told[address]:
                case About() if self._kinds and found.machine not in self._kinds:
                    why = "its bits were not compared: no CPU of its kind was there at first"
                case About():
                    why = self._own.differs(found)
                case TimeoutError():
                    why = str(found)
                case OSError():
                    continue  # it has gone meanwhile
                case _ if "ModuleNotFoundError" in repr(found):  # as Dask re-raises it
                    why = "it has no assay, or one without fleets"
                case _:
                    why = f"{type(found).__name__}: {found}"
            if why:
                self._refuse(address, name, why)
            else:
                self.machines[address] = Machine(address, name, found)
        self._supply([a for a in new if a in self.machines])
        self._ask([a for a in new if a in self.machines], ANSWER, offer, self.asked)

    def _ask(
        self, addresses: Sequence[str], seconds: float, function: Callable[..., Any], *args: Any
    ) -> dict[str, Any]:
        """Results of accepted workers; one that raises or does not answer is refused."""
        told = ask(self._client, addresses, seconds, function, *args)
        for address, error in told.items():
            if isinstance(error, Exception):
                self._refuse(address, self.machines[address].name, str(error))
        return {address: said for address, said in told.items() if address in self.machines}

    def _refuse(self, address: str, name: str, why: str) -> None:
        self.refused[address] = f"{name}: {' '.join(why.split())}"
        self.machines.pop(address, None)
        self.note(f"{self.refused[address]}: it gets no share")

    def _withdraw(self, address: str, why: str) -> None:
        """Give a worker no more shares."""
        if machine := self.machines.get(address):
            self._refuse(address, machine.name, why)
            ask(self._client, [address], SOON, end, self.asked)
            self._rescue()  # what is queued there would wait forever

    def _supply(self, addresses: Sequence[str]) -> None:
        """Send files to each machine that lacks them, once."""
        for file in self.files:
            seconds = ANSWER + file.size / SLOWEST
            there = self._ask([a for a in addresses if a in self.machines], seconds, has, file)
            lacking = [a for a, found in there.items() if not found]
            places = {self.machines[a].place[:2]: a for a in lacking}
            failed = {place: self._send(file, address) for place, address in places.items()}
            for address, found in self._ask(lacking, seconds, has, file).items():
                if not found:
                    machine = self.machines[address]
                    why = failed[machine.place[:2]] or f"it cannot read {file.path.name}"
                    self._refuse(address, machine.name, why)

    def _send(self, file: Named, address: str) -> str:
        """Send a file; returns why that failed, or ""."""
        with file.path.open("rb") as data:
            for offset in range(0, max(file.size, 1), PART):
                told = ask(self._client, [address], ANSWER, keep, file, offset, data.read(PART))
                if why := told[address]:
                    return f"{file.path.name} cannot be sent there: {why}"
        return ""

    def agree(self, job: Job[S], share: S) -> None:
        """If there are several machines, each does the same share first. One whose bits differ from
        the majority's, or from this CPU's if the vote is even, gets no shares: its CPU is of
        another kind, or refused a kernel."""
        self._kinds = {machine.about.machine for machine in self.machines.values()}
        places = {machine.place: machine for machine in self.machines.values()}
        if len(places) < 2:
            return
        found = [(m, sealed.digest) for m, sealed, _ in self._at([*places.values()], job, share)]
        found.sort(key=lambda one: (one[0].about.machine != self._own.machine, one[0].address))
        for usual, _ in Counter(digest for _, digest in found).most_common(1):
            like = next(machine for machine, digest in found if digest == usual)
            others = {machine.place for machine, digest in found if digest != usual}
            for machine in [m for m in self.machines.values() if m.place in others]:
                why = f"its bits are not those of {like.about.device} ({like.name})"
                self._withdraw(machine.address, why)
        self._kinds = {machine.about.machine for machine in self.machines.values()}

    # Shares in flight.

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
        """Finished shares, after waiting a moment at most; failed shares start again."""
        try:
            self._look()
            future = self._done.get(timeout=TICK)
        except (queue.Empty, OSError):  # a scheduler that hangs up is noticed soon
            return
        if (one := self._under_way.get(future)) is None:
            return
        if future.status != "finished":
            self._under_way.pop(future)
            self._failed(one, future.exception(timeout=SOON) if future.status == "error" else None)
            return
        try:
            sealed = future.result(timeout=SOON)
        except OSError:  # its worker is gone, and it is repeated
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
        if self._strikes[address] == STRIKES:  # once: another may be under way
            self._withdraw(address, "too many results were damaged")
        self._again(one, why)

    def _failed(self, one: _Share, error: BaseException | None) -> None:
        """Handle a failed share: Dask reports KilledWorker if it took several workers down, and
        nothing for a lost one; an exception of the share itself stops the fleet."""
        if isinstance(error, WorkerError):
            self._withdraw(error.address, error.reason)
            self._again(one, error.reason)
        elif error is None or type(error).__name__ in DEATHS:
            self._again(one, "its workers died")
        elif one.machine:  # the share's own exception
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
        """Update the list of workers."""
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
        elif time.monotonic() > self._until or self.refused.keys() >= {*self._present()} != set():
            why = next(reversed(self.refused.values()), "all are gone")
            raise FleetError(f"{self._scheduler}: no worker is left: {why}")

    def _rescue(self) -> None:
        """Resubmit shares that Dask leaves unassigned: no worker could take them when they were
        placed, or their worker was withdrawn."""
        placed = self._client.processing().items()
        held = {key for address, keys in placed if address in self.machines for key in keys}
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
        told = f"; {plural(again, 'share')} of its are done again" if again else ""
        told += "; what it was to do by itself is not done" if alone else ""
        self.note(f"{machine.name} is gone{told}")

    def deal(self, job: Job[S], shares: Iterable[S]) -> Iterator[tuple[int, Any]]:
        """The job's results for each share, with the share's index, in order.

        Few shares are in flight at a time, and few results wait for an earlier one. A share whose
        worker dies is repeated by another.
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
        """The job's result on each machine, on one worker of each and alone there: for workers on
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
        """Cancel what is in flight, here and on the workers."""
        with suppress(Exception):
            if self._client.status == "running":
                self._client.cancel([*self._under_way])
                ask(self._client, [*self._present()], SOON, end, self.asked)
        self._under_way.clear()
        with suppress(Exception):
            self._client.close(timeout=SOON)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
