"""Ctrl-C, and a closed output pipe: the program ends at once, in one line."""

import os
import signal
import time
from importlib import import_module

import pytest

from conformance.support.child import python, started
from conformance.support.models.small_models import Small
from conformance.support.program import DEAF, PROGRAM, complaints
from engine.embedded import resolve

SOON = 2.0  # seconds: one is promised where other tests do not want the cores as well
TRIES = 2  # where others had both cores for seconds it was none of the program's doing


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("interrupted") / "small.gguf"
    return Small(format="Q4_0", context=4096).write(path)


def test_ctrl_c_ends_a_generation(model):
    """Ctrl-C in the midst of a generation ends the program at once, with exit status 1."""
    arguments = [PROGRAM, "run", model, "-p", "5 6", "-n", "-1", "--ignore-eos", "--context-shift"]
    with started(*arguments) as program:
        assert program.stdout.read(20)
        program.send_signal(signal.SIGINT)
        _, said = program.communicate(timeout=30)
        assert complaints(said) == "assay: interrupted\n"
        assert program.returncode == 1


def test_ctrl_c_during_class_creation(monkeypatch, capsys):
    """Python 3.11 makes it a RuntimeError, which is reported as an interrupt."""

    def interrupted() -> None:
        raise RuntimeError("Error calling __set_name__ on 'Field'") from KeyboardInterrupt()

    program = import_module("engine.shell.main")
    monkeypatch.setattr(program, "_open_missing", interrupted)
    with pytest.raises(SystemExit, match="1"):
        program.main()
    assert capsys.readouterr().err == "assay: interrupted\n"


@pytest.mark.parametrize("command", ["run", "certify"])
@pytest.mark.parametrize("after", [0.3, 2.5])
def test_ctrl_c_ends_compilation(tmp_path, command, after):
    """Ctrl-C, which a terminal sends to children too, ends the program soon and with one line; the
    compiler prints nothing."""
    model = [resolve("story"), "-p", "5 6"] if command == "run" else ["--op", "attention"]
    took = []
    while not took or (took[-1] >= SOON and len(took) < TRIES):
        kept = {**os.environ, "ASSAY_CACHE": str(tmp_path / f"{len(took)} kept")}
        with started(PROGRAM, command, *model, env=kept, start_new_session=True) as program:
            time.sleep(after)
            began = time.monotonic()
            os.killpg(program.pid, signal.SIGINT)
            _, said = program.communicate(timeout=30)
        took.append(time.monotonic() - began)
        assert complaints(said) == "assay: interrupted\n"
        assert program.returncode == 1
    assert took[-1] < SOON


DESTROYED = """
import os, signal, time
from assay.__main__ import _interrupt_again

class Interrupted:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)

_interrupt_again()
try:
    Interrupted()
    time.sleep(30)
except KeyboardInterrupt:
    print("heeded")
"""


def test_ctrl_c_in_a_destructor_is_raised_again():
    """Python drops exceptions there."""
    done = python(DESTROYED, timeout=20)
    assert (done.stdout, done.stderr) == ("heeded\n", "")


IMPORTED = """
import os, signal, time
from abc import ABCMeta
from collections.abc import Sequence
from assay.__main__ import _interrupt_again

def register(kind, other, register=ABCMeta.register):
    if kind is Sequence:
        os.kill(os.getpid(), signal.SIGINT)
    return register(kind, other)

import numpy
_interrupt_again()
ABCMeta.register = register
try:
    import numpy.random
    time.sleep(30)
except KeyboardInterrupt:
    print("heeded")
"""


def test_ctrl_c_while_an_extension_module_is_imported_is_raised_behind_it():
    """Cython drops what is raised where it registers its arrays as sequences."""
    done = python(IMPORTED, timeout=20)
    assert (done.stdout, done.stderr) == ("heeded\n", "")


def test_ignored_sigint_stays_ignored(model):
    """Started by nohup or a shell's `&`, a program runs to its end."""
    arguments = [*DEAF, PROGRAM, "run", model, "-p", "5 6", "-n", "100", "--ignore-eos"]
    with started(*arguments) as program:
        assert program.stdout.read(1)
        program.send_signal(signal.SIGINT)
        program.communicate(timeout=60)
        assert program.returncode == 0


def test_closed_pipes_end_the_program(model):
    """A closed pipe ends the program without an error."""
    arguments = [PROGRAM, "run", model, "-p", "5 6", "-n", "100", "--ignore-eos"]
    with started(*arguments) as program:
        program.stdout.close()
        assert "Traceback" not in program.stderr.read()
        assert program.wait(timeout=60) in (0, 1)
