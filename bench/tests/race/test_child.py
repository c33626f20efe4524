"""A child process answers, and any failure of it is reported in one line."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from bench.child import Child, ChildError

FOLDER = Path(__file__).parents[3]

# A module that does as it is told; it prints wherever it can before and while it answers.
MODULE = """
import ctypes, os, signal, sys, time

print("hello", flush=True)

def answer(**question):
    if "print" in question:
        print(question["print"], flush=True)
        os.write(1, b"straight to the descriptor\\n")
        os.system("echo from a grandchild; cat")
    if "raise" in question:
        raise {"ours": ValueError, "theirs": KeyError}[question["raise"]]("no\\n such thing")
    if "signal" in question:
        print("about to die", file=sys.stderr)
        os.kill(os.getpid(), question["signal"])
    if "exit" in question:
        os._exit(question["exit"])
    time.sleep(question.get("sleep", 0))
    return {"echo": question, "env": os.environ.get("WORD")}

class Told:
    def __init__(self, *arguments):
        self.arguments, self.asked = arguments, 0

    def count(self, by):
        self.asked += by
        return [*self.arguments, self.asked]
"""


@pytest.fixture(name="spawn")
def _spawn(tmp_path):
    """Children of the module above, ended with the test."""
    (tmp_path / "told.py").write_text(MODULE)
    children: list[Child] = []

    def spawn(*arguments, name="answer", patience=30, **env):
        paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
        env = {"PYTHONPATH": paths, **env}
        children.append(Child(f"told:{name}", *arguments, env=env, patience=patience))
        return children[-1]

    yield spawn
    for child in children:
        child.close()
        assert not psutil.pid_exists(child.pid)


def test_it_answers_in_turn(spawn):
    """Every request gets its own answer; keyword arguments arrive; an object is created once."""
    child = spawn(WORD="ä")
    for number in range(3):
        question = {"number": number, "text": "line\nbreak \u2028"}
        assert child.ask(**question) == {"echo": question, "env": "ä"}
    child = spawn("a", 2, name="Told")
    assert [child.ask("count", by=3) for _ in range(2)] == [["a", 2, 3], ["a", 2, 6]]


def test_prints_do_not_disturb_the_talk(spawn):
    """Output and input of the child, or of its children, are separate from the answers, even if
    larger than a pipe's buffer."""
    child = spawn()
    for printed in ('{"error": "not an answer"}', "x" * 1_000_000):
        assert child.ask(print=printed)["env"] is None


def test_an_error_is_one_line_and_not_the_end(spawn):
    """An exception reaches the parent as one plain line; the next request is answered."""
    child = spawn()
    with pytest.raises(ChildError, match=r"\Ano such thing\Z"):
        child.ask(**{"raise": "ours"})
    with pytest.raises(ChildError, match=r"\AKeyError: 'no\\n such thing'\Z"):
        child.ask(**{"raise": "theirs"})
    assert child.ask()["echo"] == {}


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGILL", "SIGKILL"])
def test_death_by_a_signal_is_named(spawn, name):
    """A crash is reported with the signal's name, the request and its last output."""
    child = spawn()
    with pytest.raises(ChildError, match=f"told:answer, asked .*: it died of {name}: about to die"):
        child.ask(signal=getattr(signal, name))
    with pytest.raises(ChildError, match="has ended before"):
        child.ask()


def test_what_gives_no_answer_is_told(spawn):
    """A child that exits, by its status, and a missing module: a line each."""
    with pytest.raises(ChildError, match="it ended with status 3"):
        spawn().ask(exit=3)
    missing = r"No module named 'bench\.no_such_module'"
    with (
        Child("bench.no_such_module:any") as child,
        pytest.raises(ChildError, match=missing) as caught,
    ):
        child.ask()
    assert "\n" not in str(caught.value)


def test_a_hung_child_is_killed(spawn):
    """After a timeout, and the child is gone."""
    child = spawn(patience=0.5)
    with pytest.raises(ChildError, match=r"no answer within 0\.5 s"):
        child.ask(sleep=60)
    assert not psutil.pid_exists(child.pid)


def test_it_does_not_outlive_its_parent(tmp_path):
    """A busy child ends when its parent is killed."""
    (tmp_path / "told.py").write_text(MODULE)
    program = (
        "import sys, threading\n"
        "from bench.child import Child\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "child = Child('told:answer')\n"
        "child.ask()\n"
        "threading.Timer(0.1, lambda: print(child.pid, flush=True)).start()\n"
        "child.ask(sleep=60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=FOLDER, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        orphan = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    gone, _ = psutil.wait_procs([orphan], timeout=5)
    assert gone, "it still runs 5 s later"
