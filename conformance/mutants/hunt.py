"""Try mutants: each in a copy of the rooms, before the quick trials of the kernels it can touch."""

import json
import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from conformance.kernel.here import HERE
from conformance.mutants.mutate import Mutant, mutants
from conformance.rooms import ROOT, Copy
from kernels.kernel import Kernel
from kernels.provenance import closure

PATIENCE = 30.0  # seconds for one kernel's trial, after which a mutant counts as killed


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a mutant ended; `killed` is empty for one that passed every trial."""

    mutant: Mutant
    killed: str


def modules_of(kernel: Kernel) -> set[str]:
    """The modules under kernels/cpu that make up a kernel."""
    found = set(closure(kernel.share.function.__module__))
    if kernel.pack:
        found |= set(closure(kernel.pack.share.function.__module__))
    return {name for name in found if name.startswith("kernels.cpu.")}


def touched(file: str) -> list[str]:
    """Names of this machine's kernels that a change of the file may break, the nearest first."""
    module = file.removesuffix(".py").replace("/", ".")
    kernels = [k for k in HERE if module in modules_of(k)]
    return [k.name for k in sorted(kernels, key=lambda k: k.share.function.__module__ != module)]


def all_mutants(origin: Path = ROOT) -> list[Mutant]:
    """Every mutant of every source of this machine's kernels, in the rooms under `origin`."""
    modules = sorted(set().union(*(modules_of(k) for k in HERE)))
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
        return Outcome(mutant, _first_failure(copy, touched(mutant.file)))


def _first_failure(copy: Copy, names: Sequence[str]) -> str:
    """What kills a copy's kernels first; empty when all pass."""
    child = subprocess.Popen(
        [sys.executable, "-m", "kernels.trial"],
        cwd=copy.folder,
        env=copy.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert child.stdin
    assert child.stdout
    with child, child.stdin:
        try:
            for name in names:
                child.stdin.write(name + "\n")
                child.stdin.flush()
                failure = _answer(child)
                if failure:
                    return f"{name}: {failure}"
        except BrokenPipeError:
            return f"stopped with {child.wait()}"
        finally:
            child.kill()
    return ""


def _answer(child: "subprocess.Popen[str]") -> str:
    """The failure the child reports of its current kernel, or of itself."""
    assert child.stdout
    alarm = threading.Timer(PATIENCE, child.kill)
    alarm.start()
    try:
        for line in child.stdout:
            return str(json.loads(line)["failure"])
    finally:
        alarm.cancel()
    return "hung" if alarm.finished.is_set() and child.wait() == -9 else f"died: {child.wait()}"
