"""A worker's computation for a share of a text or of prompts, with a model that it keeps loaded;
and the work of each machine: trials, tuning, benchmarks.

Each calls what the local command calls, so results have the same bits.
"""

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.child import last_line
from bench.fleet.about import About, about
from bench.fleet.files import Named
from bench.fleet.matrix import State, states
from bench.fleet.worker import WorkerError, address, child, threads, wanted, watching
from engine.engine import Engine
from engine.errors import EngineError
from engine.generation.embedding import embeddings, encode_texts
from engine.generation.results import RequestOutput
from engine.generation.scoring import Score, pairs_of, scores
from engine.options import Progress
from engine.passes.observe import Observed, met, observe
from engine.perplexity import LogitsFile, Passage, Scorer, Scores
from engine.sampling.params import SamplingParams
from engine.schedule.request import Request
from engine.shell.certify import tried
from engine.shell.command_line.options import Loading
from engine.shell.tune import tuned
from kernels.certificates import Certificate
from kernels.tuning import Tuned

Failed = str  # why a prompt has no answer


@dataclass(frozen=True, slots=True)
class Model:
    """How workers load a model; `more` are internal options."""

    file: Named
    loading: Loading
    sequences: int = 1
    outputs: int = 1
    observing: bool = False
    sampling: SamplingParams | None = None

    def engine(self) -> Engine:
        """This worker's engine, loaded for the first share and kept for the next; another model's
        is dropped."""
        if (key := repr(self)) not in _held:
            for held in _held.values():
                held.close()
            _held.clear()
            loading = replace(self.loading, threads=self.loading.threads or threads())
            passes = (observe,) if self.observing else ()
            more = {"sequences": self.sequences, "outputs": self.outputs, "passes": passes}
            try:
                options = loading.options(**more)
                _held[key] = Engine.load(self.file.place, options, sampling=self.sampling)
            except (EngineError, OSError, RuntimeError, MemoryError, KeyError) as error:
                raise WorkerError(
                    address(), f"it cannot load {self.file.path.name}: {error}"
                ) from None
        return _held[key]


_held: dict[str, Engine] = {}


Chunk = tuple[int, Passage]  # of a text, with its number


@dataclass(frozen=True, slots=True)
class Perplexity:
    """NLL of the tokens of chunks, compared with a base's if there is one."""

    model: Model
    base: Named | None = None

    def __call__(self, chunks: Sequence[Chunk], asked: str) -> list[Scores]:
        scorer = Scorer(self.model.engine())
        with LogitsFile(self.base.place) if self.base else nullcontext() as base:
            return [
                scorer.read(passage, base.of_chunk(number) if base else None)
                for number, passage in wanted(asked, chunks)
            ]


@dataclass(frozen=True, slots=True)
class Imatrix:
    """Importance statistics of chunks, each by itself."""

    model: Model

    def __call__(self, chunks: Sequence[Chunk], asked: str) -> list[dict[str, Observed]]:
        engine = self.model.engine()
        return [met(engine, passage) for _, passage in wanted(asked, chunks)]


@dataclass(frozen=True, slots=True)
class Embed:
    """Embeddings of texts, each with its number of tokens."""

    model: Model
    pooling: str
    normalize: bool

    def __call__(self, texts: Sequence[str], asked: str) -> list[tuple[int, np.ndarray[Any, Any]]]:
        engine = self.model.engine()
        tokens = encode_texts(engine, texts)
        vectors = wanted(asked, embeddings(engine, tokens, self.pooling, self.normalize))
        return [(len(own), vector) for own, vector in zip(tokens, vectors, strict=True)]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A line of a file as `assay batch` reads it; `messages` become a prompt on the worker."""

    id: str
    prompt: str | Sequence[int]
    params: SamplingParams
    messages: Any = None


@dataclass(frozen=True, slots=True)
class Batch:
    """Completions, or errors, by the prompts' ids."""

    model: Model
    template: str | None = None

    def __call__(
        self, prompts: Sequence[Prompt], asked: str
    ) -> list[tuple[str, RequestOutput | Failed]]:
        engine, found = self.model.engine(), list[tuple[str, RequestOutput | Failed]]()

        def requests() -> Iterator[Request]:
            for one in prompts:
                try:
                    told = engine.encode_chat(one.messages, self.template) if one.messages else None
                except ValueError as error:
                    found.append((one.id, str(error)))
                    continue
                yield Request(one.id, told or one.prompt, one.params)

        for done in wanted(asked, engine.serve_completed(requests())):
            told = str(done.error) if done.error else done.result(engine.tokenizer)
            found.append((done.id, told))
        return found


@dataclass(frozen=True, slots=True)
class Scoring:
    """Log-likelihoods of continuations after their prompts."""

    model: Model

    def __call__(self, pairs: Sequence[tuple[str, str]], asked: str) -> list[Score]:
        engine = self.model.engine()
        own = pairs_of(engine, [prompt for prompt, _ in pairs], [then for _, then in pairs])
        found = dict(wanted(asked, scores(engine, own)))
        return [found[number] for number in range(len(own))]


@dataclass(frozen=True, slots=True)
class Proved:
    """A machine's certificates, and its kernels' states."""

    about: About
    certificates: tuple[Certificate, ...]
    states: dict[str, State]


@dataclass(frozen=True, slots=True)
class Certify:
    """The trials of `assay certify`; the machine keeps the certificates, too."""

    op: str | None
    again: bool

    def __call__(self, _: None, asked: str) -> Proved:
        found = tried(self.op, self.again, watching(asked))
        return Proved(about(), tuple(found), states(found))


@dataclass(frozen=True, slots=True)
class Tune:
    """The measurements of `assay tune`; the machine keeps them, too."""

    model: Named
    threads: int
    seconds: float
    again: bool

    def __call__(self, _: None, asked: str) -> list[Tuned]:
        progress = watching(asked)
        count = self.threads or threads()
        watcher = Progress(progress, progress, progress)
        return [*tuned(self.model.place, count, self.seconds, self.again, watcher)]


@dataclass(frozen=True, slots=True)
class Bench:
    """A run of `assay bench` with these options: its file, with the machine's conditions and
    limits."""

    model: Named
    options: Sequence[str]

    def __call__(self, _: None, asked: str) -> tuple[str, bytes]:
        with tempfile.TemporaryDirectory(prefix="assay-") as folder:
            words = "bench", str(self.model.place), *self.options, "--results", folder, "--json"
            done = child(("-m", "assay", *words), asked)
            kept = [*Path(folder).glob("*.jsonl")]
            if done.returncode or len(kept) != 1:
                raise ValueError(last_line(done.stderr) or f"exit {done.returncode}")
            json.loads(done.stdout)
            return kept[0].name, kept[0].read_bytes()
