"""Child processes: their output and exit status, with a timeout."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE = 300  # seconds


def run(*command: object, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run a program to its end; standard input is empty unless `options` has some."""
    reads = {} if "input" in options else {"stdin": subprocess.DEVNULL}
    usual = {"capture_output": True, "text": True, "timeout": PATIENCE, "check": False, **reads}
    return subprocess.run(list(map(str, command)), **{**usual, **options})


def python(program: str, *arguments: object, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run a Python program given as its source text."""
    return run(sys.executable, "-c", program, *arguments, **options)


def output_of(program: str, *arguments: object, **options: Any) -> str:
    """The standard output of such a program; its failure is an error here."""
    done = python(program, *arguments, **options)
    if done.returncode:
        raise RuntimeError(f"exit {done.returncode}\n{done.stderr}")
    return done.stdout


def opened(*command: object, **options: Any) -> "subprocess.Popen[str]":
    """Start a program in the background, with pipes from its output."""
    usual = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(list(map(str, command)), **{**usual, **options})


@contextmanager
def started(*command: object, **options: Any) -> "Iterator[subprocess.Popen[str]]":
    """The same as a context, which ends it."""
    with opened(*command, **options) as process:
        try:
            yield process
        finally:
            process.kill()
