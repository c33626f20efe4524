"""Run the trials of the kernels that a mutant changes, each mutant in a child process.

As a program it reads lines of JSON from standard input and answers each with one: it imports what
all need, and forks for each mutant a process that imports the kernels from the folder with the
mutant. A mutant's timeout is in CPU time, so that a busy machine kills nothing.
"""

import importlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numba.extending

import reference.table

if TYPE_CHECKING:
    from kernels.kernel import Kernel
    from reference.op import Case, Shape

SHARED = (numba.extending, reference.table)  # imported once, before any fork
MOST = 2**26  # work of a node with a size beyond those of cases
DRAWN = 8  # of such nodes, beside those that have most of something
TRIED = 8  # kernels, at most, that a mutant has to pass,
COMPILED = 40  # and so many, at most, that are compiled to find those of which it changes the code
COMPILING, TRYING = 120.0, 60.0  # seconds of its own time that a kernel may take,
ASLEEP = 20  # and so many times as many by the clock: it may wait for what never comes
SECRET = 77  # what no kernel knows: always the same, so that a hunt can be repeated


def parts(names: Sequence[str] = ()) -> dict[str, tuple[str, int, list[str]]]:
    """What kernels of this machine consist of, by name: a digest, the size, and the modules."""
    from conformance.mutants.reach import modules_of, parts_of
    from kernels.table import KERNELS

    found = [k for k in KERNELS if (k.name in names if names else not k.missing())]
    return {k.name: (*parts_of(k), sorted(modules_of(k))) for k in found}


def picked(kernels: "Sequence[Kernel]", sizes: dict[str, int]) -> "list[Kernel]":
    """These in an order in which the first are as different as possible: each variant of an op, in
    each format. The very first, which kills most mutants, has the least code, and compiles
    fastest."""
    waiting, variants, formats = list(kernels), Counter[str](), Counter[str]()
    found: list[Kernel] = []

    def seldom(kernel: "Kernel") -> tuple[int, int, int]:
        variant = f"{kernel.op}/{kernel.variant}"
        last = crc32(kernel.name.encode()) if found else sizes[kernel.name]
        return variants[variant], formats[kernel.format or ""], last

    while waiting:
        best = min(waiting, key=seldom)
        waiting.remove(best)
        found.append(best)
        variants[f"{best.op}/{best.variant}"] += 1
        formats[best.format or ""] += 1
    return found


def first_failure(asked: dict[str, Any]) -> dict[str, Any]:
    """The first failure of kernels that consist of something else than `before`, the digests of the
    survivors' machine code, and the number not tried. Kernels that have `passed`, or have the code
    of the `original`, are not tried."""
    from conformance.mutants.reach import runs_as
    from kernels.certificates import shares_of
    from kernels.table import find
    from kernels.trial import Request, answered

    before, axis, largest = asked["before"], asked["axis"], asked["largest"]
    passed, original = dict[str, str](asked["passed"]), asked["original"]
    now = parts(list(before))
    changed = [name for name, (digest, _) in before.items() if now[name][0] != digest]
    near = [find(name) for name in changed or before]  # all, of what is done at import
    for kernel in picked(near, {name: size for name, (_, size) in before.items()})[:COMPILED]:
        if kernel.name in passed:
            continue
        if sum(original.get(name) != code for name, code in passed.items()) >= TRIED:
            break
        told(kernel=kernel.name)
        _be_patient(COMPILING)
        try:
            for share in shares_of(kernel):
                share.compile()
            passed[kernel.name] = runs_as(kernel)
        except Exception as error:
            return {"stage": "compiling", "failure": repr(error)[:200]}
        if passed[kernel.name] == original.get(kernel.name):
            continue
        _be_patient(TRYING)
        shapes = nodes_beyond(kernel, axis, largest) if axis in kernel.spec.axes else ()
        try:
            certificate = answered(kernel, Request(kernel.name, shapes=shapes), SECRET)
        except Exception as error:  # as in a child of `certify`, of which that is the end
            return {"kernel": kernel.name, "stage": "cases", "failure": repr(error)[:200]}
        _be_patient(0)
        if certificate.failure:
            found = {"stage": certificate.stage, "failure": certificate.failure}
            return {"kernel": kernel.name, **found}
    _be_patient(0)
    missed = len(near) - len(passed) if changed else 0
    return {"kernel": "", "stage": "", "failure": "", "passed": passed, "missed": missed}


def originals(names: Sequence[str]) -> dict[str, str]:
    """Digests of unchanged kernels' machine code."""
    from conformance.mutants.reach import runs_as
    from kernels.table import find

    return {name: runs_as(find(name)) for name in names}


def _be_patient(seconds: float) -> None:
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, ASLEEP * seconds)


def sizes_beyond(largest: int) -> tuple[int, int]:
    """An odd size, and a whole number of blocks."""
    size = largest + largest // 8
    return size | 33, (size // 256 + 1) * 256


def nodes_beyond(kernel: "Kernel", axis: str, largest: int) -> "tuple[Shape, ...]":
    """Shapes of nodes with one size beyond those of cases, and the largest of each other axis in
    cases, in turn, and some random; also with the smallest size of one, since many were too much
    work."""
    from kernels.trial import sampled, work_of

    op = kernel.spec
    usual = [case for case in sampled(kernel, SECRET) if case.values == op.values[0]]
    least = {name: min(case.shape[name] for case in usual) for name in op.axes}

    def node_of(case: "Case", **sizes: int) -> "Case":
        return op.case({**case.shape, **sizes}, case.values, format=case.format)

    nodes: list[Case] = []
    for size in sizes_beyond(largest):
        for case in usual:
            whole = node_of(case, **{axis: size})
            fewer = [node_of(whole, **{n: least[n]}) for n in op.axes if n != axis]
            nodes += [
                n for n in (whole, *fewer) if kernel.takes(n.shape) and n.shape[axis] > largest
            ]
    nodes.sort(key=lambda node: work_of(op, node))
    nodes = [node for node in nodes if work_of(op, node) < MOST] or nodes[:1]
    most = [max(nodes, key=lambda node: node.shape[each]) for each in op.axes if nodes]
    drawn = random.Random(largest).sample(nodes, min(DRAWN, len(nodes)))
    return tuple({tuple(node.shape.items()): node.shape for node in (*most, *drawn)}.values())


def told(**what: Any) -> None:
    """Write a line to the process that forked this one."""
    os.write(MOUTH, json.dumps(what).encode() + b"\n")


MOUTH = -1


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """A child's report on the rooms in a folder: kernels' parts, or what rejects the first
    change."""
    global MOUTH
    ear, MOUTH = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ear)
        sys.path.insert(0, asked["folder"])
        importlib.invalidate_caches()
        try:
            told(**_told_of(asked))
        except BaseException as error:
            told(error=repr(error))
        finally:
            os._exit(0)
    os.close(MOUTH)
    with os.fdopen(ear) as heard:
        lines = [json.loads(line) for line in heard]
    _, status = os.waitpid(child, 0)
    found: dict[str, Any] = {}
    for line in lines:
        found |= line
    if status and "stage" not in found:
        number = status & 127
        hung = number in (signal.SIGPROF, signal.SIGALRM)
        ended = "hung" if hung else f"died by {signal.Signals(number).name}"
        found |= {"stage": "cases", "failure": ended}
    return found


def _told_of(asked: dict[str, Any]) -> dict[str, Any]:
    if "originals" in asked:
        return {"originals": originals(asked["originals"])}
    return _failure(asked) if "before" in asked else {"parts": parts()}


def _failure(asked: dict[str, Any]) -> dict[str, Any]:
    try:
        import kernels.table  # noqa: F401
    except Exception as error:
        return {"stage": "import", "failure": repr(error)}
    try:
        return first_failure(asked)
    except Exception as error:  # before there was anything to compile
        return {"stage": "compiling", "failure": repr(error)[:200]}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    os.environ["TMPDIR"] = tempfile.gettempdir()
    for line in sys.stdin:
        started = time.perf_counter()
        found = answer(json.loads(line))
        print(json.dumps({**found, "seconds": time.perf_counter() - started}), file=answers)


if __name__ == "__main__":
    main()
