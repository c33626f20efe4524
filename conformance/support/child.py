"""Programs in processes of their own: what they say, how they end, and that they do."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE = 300  # seconds


def run(*command: object, **options: Any) -> "subprocess.CompletedProcess[str]":
    """A program's whole life; it is asked nothing, unless `options` have what it reads."""
    reads = {} if "input" in options else {"stdin": subprocess.DEVNULL}
    usual = {"capture_output": True, "text": True, "timeout": PATIENCE, "check": False, **reads}
    return subprocess.run(list(map(str, command)), **{**usual, **options})


def python(program: str, *arguments: object, **options: Any) -> "subprocess.CompletedProcess[str]":
    """The life of a program in Python that is given as its text."""
    return run(sys.executable, "-c", program, *arguments, **options)


def output_of(program: str, *arguments: object, **options: Any) -> str:
    """What such a program prints; an error there is one here."""
    done = python(program, *arguments, **options)
    if done.returncode:
        raise RuntimeError(f"exit {done.returncode}\n{done.stderr}")
    return done.stdout


def opened(*command: object, **options: Any) -> "subprocess.Popen[str]":
    """A program that runs meanwhile, with pipes from what it prints."""
    usual = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(list(map(str, command)), **{**usual, **options})


@contextmanager
def started(*command: object, **options: Any) -> "Iterator[subprocess.Popen[str]]":
    """The same, gone afterwards."""
    with opened(*command, **options) as process:
        try:
            yield process
        finally:
            process.kill()
