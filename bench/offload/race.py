"""Ways to run a model in turns, each in a process of its own and under its limit of memory."""

import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np

from bench.child import Child, ChildError
from bench.contenders.contender import present
from bench.contenders.start import drop
from bench.offload.memory_group import MemoryGroup
from bench.offload.way import ASSAY, LLAMA_CPP, About, Process, Sample, Way
from bench.quality import passages, stories
from bench.timing import Rule, race
from engine.embedded import embedded_models
from engine.gguf_file import GGUFFile
from kernels.cache import cache_folder

OVER = 64 * 2**20  # bytes by which a process may exceed its budget
SMALL = 2**28  # bytes of weights below which a budget of a process means little
PATIENCE = 1800.0  # seconds: the first to open a model compiles, certifies and packs
UNCOUNTED = 2  # tokens after which reading ahead stands where it does after every step
WARM_UP, BEFORE_ALL = 4, 1_000_000  # samples of a budget that do not count, and their first number
SHARED = ("compiled", "certificates.jsonl")  # of a cache folder


@dataclass(frozen=True, slots=True)
class Subject:
    """A model, and how it is sampled: `counted` tokens at a time behind `uncounted` ones, those of
    `texts` or else random ones."""

    path: Path
    threads: int
    weights: int  # bytes
    vocab: int
    sparse: bool
    counted: int
    uncounted: int = UNCOUNTED
    texts: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, path: Path, threads: int, large: int, small: int) -> "Subject":
        """With `large` tokens that count or, where steps are that much shorter, `small`; of stories
        for an embedded model, which knows what comes next."""
        with GGUFFile(path) as file:
            weights = sum(tensor.n_bytes for tensor in file.tensors.values())
            vocab = file.tensors["token_embd.weight"].dims[0]
            sparse = "blk.0.fc1.weight" in file.tensors
        found = cls(path, threads, weights, vocab, sparse, large)
        if found.alone:
            found = replace(found, counted=small)
        if path not in embedded_models().values():
            return found
        tokens = (tuple(passage.tokens) for passage in passages(path, stories()))
        texts = tuple(text for text in tokens if len(text) >= found.length)
        return replace(found, texts=texts)

    @property
    def alone(self) -> bool:
        """Whether its budgets are of weights alone."""
        return self.weights < SMALL

    @property
    def length(self) -> int:
        return self.uncounted + self.counted

    def tokens(self, number: int) -> list[int]:
        """Of the sample with this number: the same for all ways."""
        if self.texts:
            return list(self.texts[number % len(self.texts)][: self.length])
        rng = np.random.default_rng(number)
        return [int(token) for token in rng.integers(0, self.vocab, self.length)]


@dataclass(slots=True)
class Outcome:
    """What a way came to: `absent` says why it has no samples, or no more."""

    way: Way
    about: About = field(default_factory=About)
    samples: list[Sample] = field(default_factory=list)
    absent: str = ""

    @property
    def seconds(self) -> list[float]:
        """A token's, of each sample."""
        return [sample.seconds for sample in self.samples]

    def median(self, name: str) -> float:
        return (
            float(np.median([getattr(s, name) for s in self.samples])) if self.samples else math.nan
        )

    @property
    def hit_rate(self) -> float:
        """Of neurons; NaN where none are looked for."""
        hits, misses = self.median("hits"), self.median("misses")
        return hits / (hits + misses) if hits + misses else math.nan

    @property
    def rate(self) -> float:
        """Bytes a second while anything was read; NaN where nothing was."""
        busy = self.median("busy")
        return self.median("bytes") / busy if busy else math.nan


class Folders:
    """A cache folder for each layout of packed weights, so that none takes another's place; they
    share what is compiled and certified.

    packed   the file of each layout, once a model was opened so
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
        """Open a model under no limit, which packs its weights; None if that was done before, or
        its budget is too small."""
        if process.layout in self.packed:
            return None
        with child_of(process, self) as child, suppress(ChildError):
            return self.opened(child, subject, process)
        return None

    def opened(self, child: Child, subject: Subject, process: Process) -> About:
        """What a child has open that was asked to. Raises ChildError."""
        question = {
            "process": asdict(process),
            "model": str(subject.path),
            "threads": subject.threads,
            "context": max(32, subject.length),
            "packed": self.packed.get(process.layout, ""),
            "alone": subject.alone,
        }
        answer = child.ask({"open": question})
        found = About(**{**answer, "notes": tuple(answer["notes"])})
        if found.packed:
            self.packed[process.layout] = found.packed
        return found


@contextmanager
def folders() -> Iterator[Folders]:
    """Beside what is cached, and gone afterwards."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="offload-", dir=cache_folder()) as folder:
        yield Folders(Path(folder))


def child_of(process: Process, kept: Folders) -> Child:
    env = {"ASSAY_CACHE": str(kept.of(process.layout))}
    return Child("bench.offload.session", env=env, patience=PATIENCE)


class Field:
    """The processes of some ways to run a model; a context manager that ends them.

    outcomes   of the ways, in their order
    notes      what is not as asked for
    """

    def __init__(self, subject: Subject, ways: Sequence[Way], kept: Folders) -> None:
        self._subject, self._kept, self._resources = subject, kept, ExitStack()
        self._children: dict[Process, Child] = {}
        self._groups: dict[Process, MemoryGroup] = {}
        self._taken: Counter[str] = Counter()
        self.outcomes = [Outcome(way) for way in ways]
        self.notes: list[str] = []
        processes = list(dict.fromkeys(way.process for way in ways))
        try:
            for process in processes:
                if process.limited and process.who == ASSAY:
                    kept.pack(subject, process)
            # first who packs what others read; last who maps a file, which keeps it in memory
            processes.sort(key=lambda p: (p.who == LLAMA_CPP, -p.budget))
            abouts = {process: self._open(process) for process in processes}
        except BaseException:
            self._resources.close()
            raise
        for outcome in self.outcomes:
            about = abouts[outcome.way.process]
            if isinstance(about, str):
                outcome.absent = about
            else:
                outcome.about = about
                self._note(*about.notes)

    def race(self, rule: Rule, watch: Callable[[int], None] | None = None) -> list[Outcome]:
        """Samples of all, in turns, once windows are as full as they get."""
        for outcome in self.outcomes:
            for number in range(WARM_UP if outcome.way.process.budget else 0):
                self._ask(outcome, BEFORE_ALL + number)
        samplers = {o.way.name: partial(self._sample, o) for o in self.outcomes if not o.absent}
        race(samplers, rule, watch)
        return self.outcomes

    def _sample(self, outcome: Outcome) -> float:
        """NaN of a way whose process has died."""
        self._taken[outcome.way.name] += 1
        found = self._ask(outcome, self._taken[outcome.way.name])
        if not found:
            return math.nan
        outcome.samples.append(found)
        return found.seconds

    def _ask(self, outcome: Outcome, number: int) -> Sample | None:
        """A sample on the tokens of this number."""
        if outcome.absent:
            return None
        question = {
            "tokens": self._subject.tokens(number),
            "uncounted": self._subject.uncounted,
            "naive": outcome.way.naive,
        }
        process = outcome.way.process
        try:
            return Sample(**self._children[process].ask(question))
        except ChildError as error:
            outcome.absent = self._reason(process, error)
            return None

    def _open(self, process: Process) -> About | str:
        """What it has open, or why it has nothing."""
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

    def close(self) -> None:
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
