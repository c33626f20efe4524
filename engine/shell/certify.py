"""assay certify: certify the kernels that this machine can run."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from engine.shell.command_line import options as o
from engine.shell.command_line.groups import option

if TYPE_CHECKING:
    from kernels.call import AnyKernel
    from kernels.certificates import Certificate
    from kernels.certify import Certified, Trials


def certify(
    op: str | None = option(None, "Kernels of this op only."),
    deep: bool = option(False, "Let Hypothesis try to break them."),
    again: bool = option(False, "Repeat trials of certified kernels."),
    as_json: o.Json = False,
) -> None:
    """Try kernels against their references and their ops' laws, and store the certificates.

    Kernels of installed packages are included.
    """
    from dataclasses import asdict

    from engine.shell.terminal import note, print_table, progress_bar
    from kernels.table import complaints

    for complaint in complaints():
        note(complaint)
    if deep:
        kernels_of(op)
        raise typer.Exit(_deep(op))
    with progress_bar() as bar:
        task = bar.add_task("certifying kernels")

        def tell(trials: "Trials") -> None:
            now = f"compiling and trying {', '.join(trials.trying)}"
            bar.update(task, total=trials.total, completed=trials.done, description=now)

        found = tried(op, again, tell)
    if as_json:
        print(json.dumps([asdict(c) for c in found]))
    else:
        columns = "kernel", "level", "cases", "error / bound", "NMSE", "seconds", "tried up to"
        print_table(
            (*columns, "outcome"),
            (
                (c.kernel, c.level, c.cases, f"{c.worst:.3f}", f"{c.nmse:.1e}", f"{c.seconds:.2f}",
                 domain(c), "certified" if c.passed else c.failure)
                for c in found
            ),
        )  # fmt: skip
    if any(not c.passed for c in found):
        raise typer.Exit(1)


def kernels_of(op: str | None) -> "list[AnyKernel]":
    """The kernels of an op, or all, that this machine can run; a usage error for an unknown op."""
    from kernels.table import EVERY, of_packages

    every = (*EVERY, *of_packages())
    chosen = [k for k in every if op in (None, k.op) and not k.missing()]
    if not chosen:
        wrong = ValueError if any(k.op == op for k in every) else typer.BadParameter
        raise wrong(f"there is no op {op!r} with a kernel for this machine")
    return chosen


def tried(op: str | None, again: bool, tell: "Certified") -> "list[Certificate]":
    """The certificates of these kernels; missing ones are tried first."""
    from kernels.certificates import Store, holding, reached
    from kernels.certify import certify as try_all
    from kernels.trial import Request

    chosen, store = kernels_of(op), Store()
    known = store.load()
    wanted = [Request(k.name, "full") for k in chosen if again or not reached(k, known, "full")]
    try_all(wanted, store, tell)
    known = store.load()
    found = [certificate for k in chosen if (certificate := holding(k, known))]
    if len(found) < len(chosen):
        raise ValueError("sources were edited while kernels were tried: certify again")
    return found


def domain(certificate: "Certificate") -> str:
    """The largest size of each axis, and how many nodes were tried at their own shape."""
    sizes = " ".join(f"{axis}={most:,}" for axis, (_, most) in certificate.axes.items())
    nodes = len(certificate.shapes)
    return sizes + (f"; {nodes} nodes" if nodes else "")


def _deep(op: str | None) -> int:
    """Run the kernels' conformance tests at length; they write the deep certificates."""
    from kernels.child import environment

    spec = importlib.util.find_spec("conformance")
    if spec is None or not spec.submodule_search_locations:
        raise ValueError("deep trials need the folder conformance/, which is not installed")
    tests = Path(spec.submodule_search_locations[0]) / "kernel" / "test_kernels.py"
    chosen = ["-k", op] if op else []
    command = [sys.executable, "-P", "-m", "pytest", "-q", str(tests), *chosen]
    return subprocess.call(command, env={**environment(), "ASSAY_DEEP": "1"})
