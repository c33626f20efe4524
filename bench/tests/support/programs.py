"""Programs as people call them, for tests: `assay`, `pytest bench/`, and many bad lines at once."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import typer
from typer.testing import CliRunner

from engine.shell.command_line.groups import spread

ROOT = Path(__file__).parents[3]
ASSAY = ("-c", "from engine.shell import main; main()")
PATIENCE = 30  # seconds
PYTEST = ("-m", "pytest", "-p", "no:cacheprovider")
EVERY = """
import contextlib, io, json, sys
found = {}
for name, words in json.loads(sys.argv[1]).items():
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(words)
    found[name] = [code, out.getvalue()[-4000:], err.getvalue()[-4000:]]
print(json.dumps(found))
"""
EVERY_ASSAY = """
import sys
from engine.shell import main
def run(words):
    sys.argv[1:] = words
    try:
        main()
        return 0
    except SystemExit as ending:
        return ending.code
"""
EVERY_PYTEST = """
import pytest
run = pytest.main
"""


def environment(folder: Path, room: Path = ROOT) -> dict[str, str]:
    """Results go to a folder of the test's own, rooms are those of a tree; what makes a process one
    of several workers is left out."""
    alone = {name: word for name, word in os.environ.items() if "XDIST" not in name}
    return {**alone, "ASSAY_RESULTS": str(folder), "PYTHONPATH": str(room)}


def run(
    folder: Path, *words: str, room: Path = ROOT, cwd: Path | None = None, **env: str
) -> "subprocess.CompletedProcess[str]":
    """Python with these words."""
    return subprocess.run(
        [sys.executable, *words], cwd=cwd or room, env={**environment(folder, room), **env},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


def what_all_say(
    folder: Path, program: str, asked: Mapping[str, Sequence[str]]
) -> dict[str, tuple[int, str, str]]:
    """Exit code, stdout and stderr of a program for many lines, from one process, whose imports
    take longer than its answers."""
    done = run(folder, "-c", program + EVERY, json.dumps(asked))
    assert done.returncode == 0, done.stderr
    found: dict[str, tuple[int, str, str]] = json.loads(done.stdout)
    return found


def executable(path: Path, script: str) -> str:
    """A program of this text, by its path."""
    path.write_text(script)
    path.chmod(0o755)
    return str(path)


def interrupted(
    folder: Path, words: Sequence[str], children: int, group: bool = True
) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of Python with these words after Ctrl-C, once it has so many
    children at work: of its whole group, as a terminal does it, or of the process alone. None of
    them is left."""
    pipe, found = subprocess.PIPE, list[psutil.Process]()
    with subprocess.Popen(
        [sys.executable, *words], cwd=ROOT, env=environment(folder), stdout=pipe, stderr=pipe,
        text=True, start_new_session=True,
    ) as process:  # fmt: skip
        deadline = time.monotonic() + PATIENCE
        while len(found) < children and time.monotonic() < deadline:
            time.sleep(0.05)
            found = psutil.Process(process.pid).children(recursive=True)
        assert len(found) == children
        time.sleep(1.5)  # at work
        (os.killpg if group else os.kill)(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    _, alive = psutil.wait_procs(found, timeout=PATIENCE)
    assert not alive
    return process.returncode, out, err


def shell(command: Callable[..., None], *words: str) -> Any:
    """What comes of a command of `assay`, run here."""
    app = typer.Typer()
    app.command()(spread(command))
    return CliRunner().invoke(app, list(words))


def main_of(monkeypatch: pytest.MonkeyPatch, module: Any, *words: str) -> int:
    """The exit code of a program of bench/ with these words."""
    monkeypatch.setattr(sys, "argv", [module.__name__, *words])
    return int(module.main())
