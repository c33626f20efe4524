"""Per-machine work of a fleet: trials, tuning, benchmarks."""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.fleet.about import About, about
from bench.fleet.files import Named
from bench.fleet.matrix import State, states
from bench.fleet.worker import child, last_line, threads, watching
from engine.options import Progress
from engine.shell.certify import tried
from engine.shell.tune import tuned
from kernels.certificates import Certificate
from kernels.tuning import Tuned


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
