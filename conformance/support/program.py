"""The program itself: `assay` in a process of its own, what it says, and why it ended."""

import sys
from pathlib import Path
from typing import Any

from conformance.support.child import run
from engine import Engine
from engine.generation.results import RequestOutput
from engine.shell.command_line.options import Sampling

PROGRAM = Path(sys.executable).with_name("assay")
DEAF = ("sh", "-c", "trap '' INT; exec \"$@\"", "sh")  # runs what follows with Ctrl-C ignored
COMPILING = "assay: compiling and trying kernels"


def complaints(stderr: str) -> str:
    """Without the lines that tell which kernels are being tried."""
    lines = stderr.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(COMPILING))


def assay(*arguments: object, **options: Any) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the program itself."""
    done = run(PROGRAM, *arguments, **options)
    return done.returncode, done.stdout, done.stderr


def printed(outcome: tuple[int, str, str]) -> str:
    """What a program that did what it was asked printed on stdout."""
    code, stdout, stderr = outcome
    assert code == 0, stderr
    return stdout


def fault(outcome: tuple[int, str, str]) -> str:
    """The one line on stderr of a program that failed."""
    code, _, stderr = outcome[0], outcome[1], complaints(outcome[2])
    assert code == 1, stderr
    assert stderr.startswith("assay: ")
    assert stderr.count("\n") == 1
    assert stderr[:-1].isprintable()
    return stderr[len("assay: ") : -1]


def misuse(outcome: tuple[int, str, str]) -> str:
    """The last line on stderr of a program that was called wrongly; usage may stand before it."""
    code, stdout, stderr = outcome
    assert (code, stdout) == (2, "")
    assert "Traceback" not in stderr
    *usage, last = stderr.splitlines()
    assert len(usage) <= 3
    return last


def answer(engine: Engine, prompt: str | list[int], **params: Any) -> RequestOutput:
    """What the program is to answer: the engine's result with its defaults, and these."""
    return engine.generate(prompt, Sampling(**params).params())


def said(engine: Engine, prompt: str | list[int], **params: Any) -> str:
    """The text of that answer."""
    return answer(engine, prompt, **params).text
