"""Try mutants: each in a copy of the rooms, before the quick trials of kernels that it changes."""

import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from conformance.kernel.here import ON_CPU
from conformance.mutants.mutate import Mutant, mutants
from conformance.mutants.reach import modules_of, parts_of
from conformance.rooms import ROOT, Copy
from kernels.kernel import Kernel

TRIED = 6  # kernels, at most, that a mutant has to pass
PATIENCE = 600.0  # seconds for one kernel, compiled and tried; reach.py has a shorter one


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a mutant ended; `killed` is empty for one that passed every trial."""

    mutant: Mutant
    killed: str


def changed(copy: Copy) -> list[Kernel]:
    """This machine's kernels that are made of something else in the copy."""
    with _child(copy) as child:
        told = _line(child)
    return _others(told)


def picked(kernels: Sequence[Kernel], sizes: Mapping[str, int]) -> list[Kernel]:
    """TRIED of these, as unlike one another as can be: of each variant of an op, in each format;
    those of least code first, which are soonest compiled."""
    waiting, variants, formats = list(kernels), Counter[str](), Counter[str]()
    found: list[Kernel] = []

    def seldom(kernel: Kernel) -> tuple[int, int, int]:
        variant = f"{kernel.op}/{kernel.variant}"
        return variants[variant], formats[kernel.format or ""], sizes[kernel.name]

    while waiting and len(found) < TRIED:
        best = min(waiting, key=seldom)
        waiting.remove(best)
        found.append(best)
        variants[f"{best.op}/{best.variant}"] += 1
        formats[best.format or ""] += 1
    return found


def all_mutants(origin: Path = ROOT) -> list[Mutant]:
    """Every mutant of every source of this machine's kernels, in the rooms under `origin`."""
    modules = sorted(set().union(*(modules_of(k) for k in ON_CPU)))
    files = [f"{name.replace('.', '/')}.py" for name in modules]
    present = [f for f in files if (origin / f).exists()]
    return [m for f in present for m in mutants(f, (origin / f).read_text())]


def hunt(count: int, seed: int, workers: int = 2) -> Iterator[Outcome]:
    """The outcomes of a seeded choice of mutants, all of the sources as they are now."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(workers) as pool:
        origin = Copy(Path(folder)).folder
        everything = all_mutants(origin)
        chosen = random.Random(seed).sample(everything, min(count, len(everything)))
        yield from pool.map(lambda mutant: attempt(mutant, origin), chosen)


def attempt(mutant: Mutant, origin: Path = ROOT) -> Outcome:
    """Try one mutant in a copy of the rooms that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(Path(folder), origin)
        path = copy.folder / mutant.file
        path.write_text(mutant.source(path.read_text()))
        return Outcome(mutant, _first_failure(copy))


@cache
def _as_they_are() -> dict[str, tuple[str, int]]:
    return {kernel.name: parts_of(kernel) for kernel in ON_CPU}


def _others(told: Mapping[str, Any]) -> list[Kernel]:
    return [k for k in ON_CPU if told[k.name][0] != _as_they_are()[k.name][0]]


def _first_failure(copy: Copy) -> str:
    """What kills a copy's kernels first; empty when all pass, or none is another than before."""
    with _child(copy) as child:
        assert child.stdin
        told = _line(child)
        if isinstance(told, str):
            return told
        sizes = {name: size for name, (_, size) in _as_they_are().items()}
        for kernel in picked(_others(told), sizes):
            child.stdin.write(kernel.name + "\n")
            child.stdin.flush()
            told = _line(child)
            failure = told if isinstance(told, str) else told["failure"]
            if failure:
                return f"{kernel.name}: {failure}"
    return ""


@contextmanager
def _child(copy: Copy) -> "Iterator[subprocess.Popen[str]]":
    """reach.py on the copy's kernels."""
    child = subprocess.Popen(
        [sys.executable, "-m", "conformance.mutants.reach"],
        cwd=copy.folder,
        env=copy.environment(ROOT),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with child:
        try:
            yield child
        finally:
            child.kill()


def _line(child: "subprocess.Popen[str]") -> Any:
    """What the child says next, or, a text, how it ended."""
    assert child.stdout
    alarm = threading.Timer(PATIENCE, child.kill)
    alarm.start()
    try:
        for line in child.stdout:
            return json.loads(line)
    finally:
        alarm.cancel()
    ended = child.wait()
    return "hung" if ended in (-signal.SIGPROF, -signal.SIGKILL) else f"died: {ended}"
