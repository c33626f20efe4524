"""How long a process takes from its start to the first token, cold and warm, and its peak memory
for loading a model and running a prompt."""

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.child import Child
from bench.contenders.contender import Setup
from bench.race.experiment import Sample

PROMPT = "Once upon a time"
PATIENCE = 600.0  # seconds: with an empty cache every kernel is compiled and certified
STATUS = Path("/proc/self/status")
PEAK = "VmHWM:"  # peak resident bytes since the program's own start
PARTS = ("python", "imports", "certify", "load", "prompt")


def start(model: Path, threads: int, cache: Path | None = None) -> Sample:
    """Start Assay once, with compiled kernels and certificates in `cache` (None: the user's).

    Seconds are from spawning an interpreter to the first token, with their parts: Python's start,
    imports, trials of uncertified kernels, the rest of the load (compile, pack), and the prompt to
    its first token.
    """
    env = {"ASSAY_CACHE": str(cache)} if cache else {}
    started = time.perf_counter()
    with Child("bench.contenders.start:first_token", env=env, patience=PATIENCE) as child:
        parts = child.ask(model=model, threads=threads)
        seconds = time.perf_counter() - started
    return Sample(seconds, {"python": seconds - sum(parts.values()), **parts}, check=True)


def cold_start(model: Path, threads: int) -> Sample:
    """Start Assay once with an empty cache and the model's file evicted from memory. Files of
    Python and its libraries may be cached."""
    with tempfile.TemporaryDirectory(prefix="assay-cold-") as cache:
        drop(model)
        return start(model, threads, Path(cache))


def drop(path: Path) -> None:
    """Ask the system to evict a file from the page cache, where possible."""
    if hasattr(os, "posix_fadvise"):
        with path.open("rb") as file:
            os.fsync(file.fileno())  # pages not yet written would stay
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def first_token(model: Path, threads: int) -> dict[str, float]:
    """The child's work: import, load, generate one token; the seconds of each."""
    started = time.perf_counter()
    from engine.engine import Engine
    from engine.options import Progress
    from engine.sampling.params import SamplingParams

    imported = tried = time.perf_counter()

    def certified(*outcome: object) -> None:
        nonlocal tried
        tried = time.perf_counter()

    progress = Progress(certified=certified)
    # never closed, which would take time before the answer: the process ends soon
    engine = Engine.load(model, threads=threads, progress=progress)
    certify, loaded = tried - imported, time.perf_counter()
    next(engine.stream(PROMPT, SamplingParams(max_tokens=1, temperature=0)))
    drawn = time.perf_counter()
    return {
        "imports": imported - started,
        "certify": certify,
        "load": loaded - imported - certify,
        "prompt": drawn - loaded,
    }


@dataclass(frozen=True, slots=True)
class Held:
    """Peak resident bytes, loading included, and those of the file and of the KV cache."""

    peak: int
    file: int
    cache: int


def held(model: Path, setup: Setup, prompt: int) -> Held:
    """Load the model in a new process and run a prompt of so many tokens and one more step."""
    with Child("bench.contenders.start:held_here") as child:
        found: Held = child.ask(model=model, setup=setup, prompt=prompt)
        return found


def peak(status: Path = STATUS) -> int:
    """Peak bytes of this process; OSError or ValueError where the system does not tell."""
    for line in status.read_text().splitlines():
        if line.startswith(PEAK):
            return int(line.split()[1]) * 1024
    raise ValueError(f"{status}: no {PEAK.rstrip(':')} in it")


def held_here(model: Path, setup: Setup, prompt: int) -> Held:
    """The child's work."""
    from bench.contenders.assay import loaded

    with loaded(model, setup) as engine:
        own = engine.model
        tokens = np.random.default_rng(0).integers(own.config.vocab, size=prompt + 1).tolist()
        own.evaluate(tokens[:-1], 0)
        own.evaluate(tokens[-1:], prompt)
        cache = sum(part.nbytes for part in own.caches.values())
        return Held(peak(), model.stat().st_size, cache)
