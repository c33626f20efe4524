"""Ways to run a model in turns, each in its own process and under its memory limit."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import numpy as np

from bench.child import Child, ChildError
from bench.contenders.contender import present
from bench.contenders.start import drop
from bench.offload.memory_group import MemoryGroup
from bench.offload.way import ASSAY, DISK, IN_A_ROW, IN_MEMORY, LLAMA_CPP, About, Process, Way
from bench.quality import opening
from bench.race.experiment import Contender, Racing, Sample
from bench.race.results import Measurement
from engine.gguf.file import GGUFFile
from kernels.cache import cache_folder

BENCH = "offload"
BYTES, READING, WAITING, FOUND, MISSED = "bytes", "reading", "waiting", "found", "missed"
# Per token: bytes from disk, seconds with reads in flight and seconds that the step waited
# for them, neurons found in memory and neurons read.
PARTS = {BYTES: "B", READING: "s", WAITING: "s", FOUND: "neurons", MISSED: "neurons"}
OVER = 64 * 2**20  # bytes by which a process may exceed its budget
SMALL = 2**28  # bytes of weights below which a budget for the process means little
PATIENCE = 1800.0  # seconds: the first to open a model compiles, certifies and packs
UNCOUNTED = 2  # tokens after which read-ahead is in its steady state
WARM_UP, BEFORE_ALL = 4, 1_000_000  # warm-up samples of a budget, and the number of the first
SHARED = ("compiled", "certificates.jsonl")  # of a cache folder


@dataclass(frozen=True, slots=True)
class Subject:
    """A model and its samples: `counted` tokens each after `uncounted` ones."""

    path: Path
    threads: int
    weights: int  # bytes
    vocab: int
    sparse: bool
    counted: int
    uncounted: int = UNCOUNTED

    @classmethod
    def of(cls, path: Path, threads: int, large: int, small: int) -> "Subject":
        """With `large` counted tokens, or `small` where steps are that much shorter."""
        with GGUFFile(path) as file:
            weights = sum(tensor.n_bytes for tensor in file.tensors.values())
            vocab = file.tensors["token_embd.weight"].dims[0]
            sparse = "blk.0.fc1.weight" in file.tensors
        found = cls(path, threads, weights, vocab, sparse, large)
        return replace(found, counted=small) if found.alone else found

    @property
    def alone(self) -> bool:
        """Whether its budgets are for weights alone."""
        return self.weights < SMALL

    @property
    def length(self) -> int:
        return self.uncounted + self.counted

    def tokens(self, number: int) -> list[int]:
        """The sample's tokens, the same for all ways: of a story for an embedded model, which can
        predict it, else random."""
        return opening(self.path, self.vocab, self.length, number)


class Folders:
    """A cache folder for each layout of packed weights, so that none replaces another; compiled
    kernels and certificates are shared.

    packed   the file of each layout, once a model was opened with it
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.packed: dict[str, str] = {}

    def of(self, layout: str) -> Path:
        own = self._folder / layout
        if not own.exists():
            own.mkdir()
            (cache_folder() / "compiled").mkdir(parents=True, exist_ok=True)
            (cache_folder() / "certificates.jsonl").touch()
            for name in SHARED:
                (own / name).symlink_to(cache_folder().absolute() / name)
        return own

    def pack(self, subject: Subject, process: Process) -> About | None:
        """Open a model without a limit, which packs its weights; None if that was done before, or
        its budget is too small."""
        if process.layout in self.packed:
            return None
        with child_of(process, self) as child, suppress(ChildError):
            return self.opened(child, subject, process)
        return None

    def opened(self, child: Child, subject: Subject, process: Process) -> About:
        """Have a child open a model; returns its description. Raises ChildError."""
        found: About = child.ask(
            "open",
            process=process,
            model=subject.path,
            threads=subject.threads,
            context=max(32, subject.length),
            packed=self.packed.get(process.layout, ""),
            alone=subject.alone,
        )
        if found.packed:
            self.packed[process.layout] = found.packed
        return found


@contextmanager
def folders() -> Iterator[Folders]:
    """Temporary folders beside the cache."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="offload-", dir=cache_folder()) as folder:
        yield Folders(Path(folder))


def child_of(process: Process, kept: Folders) -> Child:
    env = {"ASSAY_CACHE": str(kept.of(process.layout))}
    return Child("bench.offload.runner:Served", env=env, patience=PATIENCE)


class Field:
    """The processes of some ways to run a model, ended with the stack.

    abouts   what each has open, by the way's name notes    deviations from the request
    """

    def __init__(
        self, subject: Subject, ways: Sequence[Way], kept: Folders, kind: str, stack: ExitStack
    ) -> None:
        self._subject, self._kept, self._kind, self._resources = subject, kept, kind, stack
        self._children: dict[Process, Child] = {}
        self._groups: dict[Process, MemoryGroup] = {}
        self._ways, self.notes = ways, list[str]()
        processes = list(dict.fromkeys(way.process for way in ways))
        for process in processes:
            if process.limited and process.who == ASSAY:
                kept.pack(subject, process)
        # ways that pack first, then their readers; ways that map a file, which stays cached, last
        processes.sort(key=lambda p: (p.who == LLAMA_CPP, -p.budget))
        opened = {process: self._open(process) for process in processes}
        self._opened = {way.name: opened[way.process] for way in ways}
        self.abouts = {name: one for name, one in self._opened.items() if isinstance(one, About)}
        for about in self.abouts.values():
            self._note(*about.notes)

    def race(self, racing: Racing) -> list[Measurement]:
        """Rows of all, in turns, once windows are full."""
        for way in self._ways:
            for number in range(WARM_UP if way.process.budget and way.name in self.abouts else 0):
                with suppress(ChildError):  # it is absent, as the first sample will tell
                    self._ask(way, BEFORE_ALL + number)
        contenders = {way.name: self._contender(way) for way in self._ways}
        return beside_the_disk(racing(self._kind, contenders))

    def _contender(self, way: Way) -> Contender:
        about, process, subject = self._opened[way.name], way.process, self._subject
        disk = process.who == DISK
        row = Measurement(
            BENCH,
            way.name,
            contender=ASSAY if disk else process.who,
            shape=self._kind,
            model=subject.path.name,
            threads=subject.threads,
            tokens=0 if disk else 1,
        )
        if isinstance(about, str):
            return Contender(row, absent=about)
        told = settings(process, about)
        if way.name == IN_MEMORY:
            told = f"weights={megabytes(subject.weights)}"
            told += ",budgets=of weights alone" if subject.alone else ""
        row = replace(row, settings=told)
        parts = {name: replace(row, phase=name, unit=unit) for name, unit in PARTS.items()}
        numbers = count(1)
        return Contender(
            row, lambda: self._ask(way, next(numbers)), parts, excused=(ChildError, MemoryError)
        )

    def _ask(self, way: Way, number: int) -> Sample:
        """A sample on the tokens of this number."""
        tokens, uncounted = self._subject.tokens(number), self._subject.uncounted
        child = self._children[way.process]
        try:
            found: Sample = child.ask("sample", tokens=tokens, uncounted=uncounted, naive=way.naive)
            return found
        except ChildError as error:
            raise ChildError(self._reason(way.process, error)) from None

    def _open(self, process: Process) -> About | str:
        """Open it; returns its description, or why it failed."""
        if process.who == LLAMA_CPP and (missing := present(LLAMA_CPP)):
            return missing
        if process.limited:
            try:
                group = self._resources.enter_context(MemoryGroup(process.budget + OVER))
                self._groups[process] = group
            except OSError as error:
                reason = f"no limit of memory can be set here: {error}"
                if process.who == LLAMA_CPP:
                    return reason
                self._note(reason)
        child = self._resources.enter_context(child_of(process, self._kept))
        self._children[process] = child
        try:
            if process in self._groups:
                self._groups[process].add(child.pid)
            drop(self._subject.path)
            return self._kept.opened(child, self._subject, process)
        except ChildError as error:
            return self._reason(process, error)

    def _reason(self, process: Process, error: ChildError) -> str:
        group = self._groups.get(process)
        if group and group.killed:
            return f"killed by the system: more than {group.limit // 2**20} MiB of memory"
        return str(error)

    def _note(self, *notes: str) -> None:
        self.notes += [note for note in notes if note not in self.notes]


def beside_the_disk(rows: Sequence[Measurement]) -> list[Measurement]:
    """The rows of a race, with the bytes that each way's samples read from disk, and the time that
    these take at the disk's best sequential rate."""
    moved = {row.test: row.median for row in rows if row.phase == BYTES}
    disk = next((row for row in rows if row.test == IN_A_ROW and row.samples), None)
    rates = [moved[IN_A_ROW] / seconds for seconds in disk.samples] if disk else []
    spread = float(np.subtract(*np.quantile(rates, (0.75, 0.25))) / max(rates)) if disk else 0.0
    found = []
    for row in rows:
        if row.phase == "run" and row.samples:
            row = replace(row, bytes=moved.get(row.test, 0.0))
            if disk and row.tokens and row.bytes:
                seconds = row.bytes / max(rates)
                row = replace(row, limit="disk", limit_seconds=seconds, limit_spread=spread)
        found.append(row)
    return found


def settings(process: Process, about: About) -> str:
    """E.g. budget=1050MiB,resident=861.6MB,streamed=1208.0MB: the budget, resident weights, and
    weights read in each step; for neurons the pool and the share that fits."""
    if not process.budget:
        return f"scattered={process.scattered}" if process.scattered else ""
    words = [f"budget={megabytes(process.budget)}"]
    if process.who == ASSAY:
        words += [f"resident={megabytes(about.resident)}", f"streamed={megabytes(about.streamed)}"]
    if about.pool:
        words += [f"pool={megabytes(about.pool)}", f"kept={about.kept:.0%}"]
    return ",".join(words)


def megabytes(n_bytes: float) -> str:
    return f"{n_bytes / 1e6:.1f}MB"
