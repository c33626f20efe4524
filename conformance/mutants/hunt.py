"""Try mutants: each in a copy of the rooms, with the trials of kernels that it changes."""

import ast
import json
import os
import queue
import random
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

from conformance.mutants.attempt import nodes_beyond
from conformance.mutants.mutate import Mutant, beyond, mutants
from conformance.mutants.reach import modules_of
from conformance.support.child import opened
from conformance.support.machine_kernels import ON_CPU
from conformance.support.rooms import ROOMS, ROOT, environment
from kernels.kernel import Kernel

PARSING = threading.Lock()  # Python 3.11 counts its parser's depth across threads
BEYOND = 4  # one of so many mutants holds only where a size is beyond what cases have


# How functions become machine code, which is not what any of them computes.
COMPILERS = {
    f"kernels.cpu.runtime.{name}" for name in ("closures", "construction", "elf", "object_code")
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a mutant ended: the kernel that was rejected, at which stage, by what, and when; or, for
    a survivor, how many kernels were tried, which have other machine code, and how many were not
    tried."""

    mutant: Mutant
    kernel: str
    stage: str
    failure: str
    seconds: float
    passed: int = 0
    missed: int = 0

    @property
    def killed(self) -> bool:
        return bool(self.stage)

    @property
    def same(self) -> bool:
        """Whether every kernel that it could change has unchanged machine code."""
        return not (self.stage or self.passed or self.missed)


@cache
def largest_sizes(file: str) -> dict[str, int]:
    """The largest size of each axis in quick cases, for the ops whose shares are in a file;
    functions elsewhere use other names. Axes whose sizes are larger in another kernel of the file
    are omitted."""
    found: dict[str, int] = {}
    module = file.removesuffix(".py").replace("/", ".")
    own = [k for k in ON_CPU if any(s.function.__module__ == module for s in k.shares)]
    for kernel in {kernel.op: kernel for kernel in own}.values():
        for case in kernel.spec.quick_cases(kernel.format):
            for axis, size in case.shape.items():
                found[axis] = max(found.get(axis, 0), size)
    return {
        axis: largest
        for axis, largest in found.items()
        if any(axis in k.spec.axes and nodes_beyond(k, axis, largest) for k in own)
    }


def all_mutants(origin: Path = ROOT, kernels: Iterable[Kernel] = ON_CPU) -> list[Mutant]:
    """Every mutant of every source of this machine's kernels, in the rooms under `origin`."""
    modules = set().union(*(modules_of(k) for k in kernels)) - COMPILERS
    files = [f"{name.replace('.', '/')}.py" for name in sorted(modules)]
    present = [f for f in files if (origin / f).exists()]
    return [m for f in present for m in mutants(f, (origin / f).read_text())]


def chosen(count: int, seed: int, origin: Path = ROOT, words: Sequence[str] = ()) -> list[Mutant]:
    """A seeded sample, of which one in BEYOND applies only beyond the sizes of cases, if there are
    enough; from files whose names contain one of these words, if any are given."""
    rng, everything = random.Random(seed), all_mutants(origin)
    everything = [m for m in everything if not words or any(word in m.file for word in words)]
    rng.shuffle(everything)
    trees = {file: ast.parse((origin / file).read_text()) for file in {m.file for m in everything}}
    found, left = list[Mutant](), list[Mutant]()
    for mutant in everything:
        if len(found) == count:
            break
        if len(found) % BEYOND == BEYOND - 1:
            further = list(beyond(mutant, trees[mutant.file], largest_sizes(mutant.file)))
            (found if further else left).append(rng.choice(further) if further else mutant)
        else:
            found.append(mutant)
    return (found + left)[:count]


class Server:
    """conformance.mutants.attempt on the rooms in a folder, with a cache of its own beside them."""

    def __init__(self, origin: Path) -> None:
        self._child: Any = opened(
            sys.executable, "-m", "conformance.mutants.attempt", cwd=origin,
            env=environment(origin, ROOT) | {"OPENBLAS_NUM_THREADS": "1"},
            stdin=PIPE, stderr=DEVNULL, start_new_session=True,
        )  # fmt: skip

    def ask(self, **what: Any) -> dict[str, Any]:
        print(json.dumps(what), file=self._child.stdin, flush=True)
        found: dict[str, Any] = json.loads(self._child.stdout.readline())
        if "error" in found:
            raise RuntimeError(found["error"])
        return found

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        os.killpg(self._child.pid, signal.SIGKILL)
        self._child.communicate()


def copied(folder: Path, origin: Path) -> None:
    """Copy the kernels to another folder; the reference and compiled modules stay in place."""
    shutil.copytree(origin / "kernels", folder / "kernels")


def hunt(count: int, seed: int, workers: int = 2, words: Sequence[str] = ()) -> Iterator[Outcome]:
    """The outcomes of a seeded sample of mutants as they finish, all of the present sources; the
    rest is cancelled when the caller stops."""
    with tempfile.TemporaryDirectory() as folder:
        origin = Path(folder) / "origin"
        for room in ROOMS:
            shutil.copytree(ROOT / room, origin / room)
        yield from _outcomes(chosen(count, seed, origin, words), origin, workers)


def _outcomes(waiting: Sequence[Mutant], origin: Path, workers: int) -> Iterator[Outcome]:
    servers, originals = [Server(origin) for _ in range(workers)], _Originals(origin)
    idle, pool = queue.SimpleQueue[Server](), ThreadPoolExecutor(workers)
    for server in servers:
        idle.put(server)

    def outcome(mutant: Mutant) -> Outcome:
        server = idle.get()
        try:
            return _attempt(mutant, origin, server, before, originals)
        finally:
            idle.put(server)

    try:
        before = servers[0].ask(folder=str(origin))["parts"]
        for done in as_completed([pool.submit(outcome, mutant) for mutant in waiting]):
            yield done.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for server in servers:
            server.end()
        pool.shutdown()  # copies lie in the folder that goes now


class _Originals:
    """Digests of unchanged kernels' machine code, computed on demand."""

    def __init__(self, origin: Path) -> None:
        self._origin, self.known = origin, dict[str, str]()

    def learn(self, names: Iterable[str], server: Server) -> None:
        unknown = sorted(set(names) - self.known.keys())
        if unknown:
            self.known |= server.ask(folder=str(self._origin), originals=unknown)["originals"]


def _attempt(
    mutant: Mutant, origin: Path, server: Server, before: dict[str, Any], originals: _Originals
) -> Outcome:
    module = mutant.file.removesuffix(".py").replace("/", ".")
    near = {n: (digest, size) for n, (digest, size, made) in before.items() if module in made}
    passed: dict[str, str] = {}
    with tempfile.TemporaryDirectory(dir=origin.parent) as folder:
        copied(Path(folder), origin)
        path = Path(folder) / mutant.file
        with PARSING:
            source = mutant.source(path.read_text())
        path.unlink()
        path.write_text(source)
        asked = {"folder": folder, "before": near, "axis": mutant.axis, "largest": mutant.largest}
        seconds, looked_at = 0.0, -1
        while True:  # until it has met enough kernels that it changes, or all
            found = server.ask(**asked, passed=passed, original=originals.known)
            seconds += found["seconds"]
            passed = found.get("passed", {})
            if found["stage"] or len(passed) == looked_at:
                break
            looked_at = len(passed)
            originals.learn(passed, server)
    others = sum(originals.known[name] != code for name, code in passed.items())
    return Outcome(
        mutant, found.get("kernel", ""), found["stage"], found["failure"], round(seconds, 1),
        passed=others, missed=found.get("missed", 0),
    )  # fmt: skip
