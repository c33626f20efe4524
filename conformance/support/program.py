"""The program `assay` in a process of its own: its output, and its errors."""

import sys
from pathlib import Path
from typing import Any

from conformance.support.child import run
from engine import Engine
from engine.generation.results import RequestOutput
from engine.shell.command_line.options import Sampling

PROGRAM = Path(sys.executable).with_name("assay")
DEAF = ("sh", "-c", "trap '' INT; exec \"$@\"", "sh")  # runs a command that ignores Ctrl-C
COMPILING = "assay: compiling and trying kernels"


def complaints(stderr: str) -> str:
    """stderr without the lines about kernels being tried."""
    lines = stderr.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(COMPILING))


def assay(*arguments: object, **options: Any) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of the program."""
    done = run(PROGRAM, *arguments, **options)
    return done.returncode, done.stdout, done.stderr


def printed(outcome: tuple[int, str, str]) -> str:
    """stdout of a program that succeeded."""
    code, stdout, stderr = outcome
    assert code == 0, stderr
    return stdout


def fault(outcome: tuple[int, str, str]) -> str:
    """The single line on stderr of a program that failed."""
    code, _, stderr = outcome[0], outcome[1], complaints(outcome[2])
    assert code == 1, stderr
    assert stderr.startswith("assay: ")
    assert stderr.count("\n") == 1
    assert stderr[:-1].isprintable()
    return stderr[len("assay: ") : -1]


def misuse(outcome: tuple[int, str, str]) -> str:
    """The last line on stderr of a program with wrong usage; the usage may precede it."""
    code, stdout, stderr = outcome
    assert (code, stdout) == (2, "")
    assert "Traceback" not in stderr
    *usage, last = stderr.splitlines()
    assert len(usage) <= 3
    return last


def answer(engine: Engine, prompt: str | list[int], **params: Any) -> RequestOutput:
    """The program's expected answer: the engine's with its defaults and these parameters."""
    return engine.generate(prompt, Sampling(**params).params())


def said(engine: Engine, prompt: str | list[int], **params: Any) -> str:
    """The text of that answer."""
    return answer(engine, prompt, **params).text
