"""Mutants before the trials of kernels that they change, each in a process of its own.

Run as a program it reads lines of JSON from standard input and answers each with one: it imports
what all need, and forks for each mutant a process that imports the kernels from the folder that
holds it. A mutant's patience is counted in its own time, so that a busy machine kills nothing.
"""

import importlib
import json
import os
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
TRIED = 8  # kernels, at most, that a mutant has to pass
COMPILING, TRYING = 120.0, 60.0  # seconds of its own time that a kernel may take,
ASLEEP = 20  # and so many times as many by the clock: it may wait for what never comes
SECRET = 77  # what no kernel knows: always the same, so that a hunt can be repeated


def parts(names: Sequence[str] = ()) -> dict[str, tuple[str, int, list[str]]]:
    """What kernels of this machine are made of, by name: a digest, the size, and the modules."""
    from conformance.mutants.reach import modules_of, parts_of
    from kernels.table import KERNELS

    found = [k for k in KERNELS if (k.name in names if names else not k.missing())]
    return {k.name: (*parts_of(k), sorted(modules_of(k))) for k in found}


def picked(kernels: "Sequence[Kernel]", sizes: dict[str, int]) -> "list[Kernel]":
    """TRIED of these, as unlike one another as can be: of each variant of an op, in each format.
    The first, which stops most mutants, has the least code, and is soonest compiled."""
    waiting, variants, formats = list(kernels), Counter[str](), Counter[str]()
    found: list[Kernel] = []

    def seldom(kernel: "Kernel") -> tuple[int, int, int]:
        variant = f"{kernel.op}/{kernel.variant}"
        last = crc32(kernel.name.encode()) if found else sizes[kernel.name]
        return variants[variant], formats[kernel.format or ""], last

    while waiting and len(found) < TRIED:
        best = min(waiting, key=seldom)
        waiting.remove(best)
        found.append(best)
        variants[f"{best.op}/{best.variant}"] += 1
        formats[best.format or ""] += 1
    return found


def first_failure(before: dict[str, tuple[str, int]], axis: str, largest: int) -> dict[str, str]:
    """What stops the kernels first that are made of something else than `before`."""
    from kernels.certificates import shares_of
    from kernels.table import find
    from kernels.trial import Request, answered

    now = parts(list(before))
    changed = [find(name) for name, (digest, _) in before.items() if now[name][0] != digest]
    for kernel in picked(changed, {name: size for name, (_, size) in before.items()}):
        told(kernel=kernel.name)
        _be_patient(COMPILING)
        try:
            for share in shares_of(kernel):
                share.compile()
        except Exception as error:
            return {"stage": "compiling", "failure": repr(error)[:200]}
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
    return {"kernel": "", "stage": "", "failure": ""}


def _be_patient(seconds: float) -> None:
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, ASLEEP * seconds)


def sizes_beyond(largest: int) -> tuple[int, int]:
    """An odd one, and one that is a whole number of blocks."""
    size = largest + largest // 8
    return size | 33, (size // 256 + 1) * 256


def nodes_beyond(kernel: "Kernel", axis: str, largest: int) -> "tuple[Shape, ...]":
    """Shapes of nodes that have one size beyond what cases have, and of the others what cases have
    most of, each in turn."""
    from kernels.trial import sampled, work_of

    op = kernel.spec
    nodes: list[Case] = []
    usual = [case for case in sampled(kernel, SECRET) if case.values == op.values[0]]
    for size in sizes_beyond(largest):
        found = [op.case({**c.shape, axis: size}, c.values, format=c.format) for c in usual]
        nodes += [n for n in found if kernel.takes(n.shape) and n.shape[axis] > largest]
    nodes.sort(key=lambda node: work_of(op, node))
    nodes = [node for node in nodes if work_of(op, node) < MOST] or nodes[:1]
    most = [max(nodes, key=lambda node: node.shape[each]) for each in op.axes if nodes]
    return tuple(node.shape for i, node in enumerate(most) if node not in most[:i])


def told(**what: Any) -> None:
    """A line for the process that forked this one."""
    os.write(MOUTH, json.dumps(what).encode() + b"\n")


MOUTH = -1


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """What a child says of the rooms in a folder: what kernels are made of, or what stops the first
    of those that are another than before."""
    global MOUTH
    ear, MOUTH = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ear)
        sys.path.insert(0, asked["folder"])
        importlib.invalidate_caches()
        try:
            told(**({"parts": parts()} if "before" not in asked else _failure(asked)))
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


def _failure(asked: dict[str, Any]) -> dict[str, str]:
    try:
        import kernels.table  # noqa: F401
    except Exception as error:
        return {"stage": "import", "failure": repr(error)}
    try:
        return first_failure(asked["before"], asked["axis"], asked["largest"])
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
