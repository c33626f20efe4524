"""assay chat on a terminal: editing, history, completion, keys."""

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import threading
import time

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from conformance.support.program import PROGRAM
from engine.shell.talk import reading
from engine.shell.talk.reading import Commands, Terminal, kept_history
from engine.shell.talk.slash import COMMANDS, settable

ENTER, ALT_ENTER, CTRL_C, CTRL_D = "\r", "\x1b\r", "\x03", "\x04"
LEFT, UP, TAB = "\x1b[D", "\x1b[A", "\t"
SIGN = r"(?<!\x1b)>"
PATIENCE, AGAIN = 60, 0.3  # seconds


@pytest.fixture
def typed():
    """The messages that a chat reads from keys. A pair is keys and the expected text, which is
    waited for: histories and completions take a moment."""

    def read(*typed, multi=False, history=None):
        with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
            terminal = Terminal(COMMANDS, settable(), history=history or InMemoryHistory())
            terminal.multi = multi
            fingers = threading.Thread(target=press, args=(pipe, terminal, typed), daemon=True)
            fingers.start()
            messages = []
            while (message := terminal.ask()) is not None:
                messages.append(message)
            fingers.join(PATIENCE)
            return messages

    return read


def press(pipe, terminal, typed):
    for keys in (*typed, CTRL_D):
        if isinstance(keys, str):
            pipe.send_text(keys)
            continue
        again, text = keys
        end = time.monotonic() + PATIENCE
        while terminal.session.default_buffer.text != text and time.monotonic() < end:
            pipe.send_text(again)
            time.sleep(AGAIN)


@pytest.mark.parametrize(
    ("keys", "messages"),
    [
        (["hello", ENTER], ["hello"]),
        ([ENTER, "hello", ENTER], ["", "hello"]),
        (["helo", LEFT, "l", ENTER], ["hello"]),
        (["a", ALT_ENTER, "b", ENTER], ["a\nb"]),
        (["one", ENTER, (UP, "one"), ENTER], ["one", "one"]),
        (["mistake", CTRL_C, "hello", ENTER], ["", "hello"]),
        (["/sta", (TAB, "/stats"), ENTER], ["/stats"]),
        (["/set tempera", (TAB, "/set temperature"), " 0", ENTER], ["/set temperature 0"]),
        ([], []),
    ],
)
def test_keys(typed, keys, messages):
    """Enter sends, an empty line too; Alt-Enter starts a new line; Ctrl-C clears, Ctrl-D quits."""
    assert typed(*keys) == messages


def test_several_lines(typed):
    """Then Enter starts a new line and Alt-Enter sends."""
    assert typed("a", ENTER, "b", ALT_ENTER, multi=True) == ["a\nb"]


def test_a_history_is_kept(typed, tmp_path):
    """It is readable by the user only; if it cannot be stored it lasts for this chat."""
    folder = tmp_path / "state"
    assert typed("hello", ENTER, history=kept_history(folder)) == ["hello"]
    assert (folder / reading.HISTORY).stat().st_mode & 0o077 == 0
    assert typed((UP, "hello"), ENTER, history=kept_history(folder)) == ["hello"]
    (tmp_path / "file").touch()
    assert isinstance(kept_history(tmp_path / "file"), InMemoryHistory)


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("/s", {"/stats", "/save", "/set", "/system"}),
        ("/set top-", {"top-k", "top-p", "top-n-sigma", "top-nsigma"}),
        ("hello", set()),
        ("/undo t", set()),
    ],
)
def test_completions(line, offered):
    found = Commands(COMMANDS, settable()).get_completions(Document(line), CompleteEvent())
    assert {completion.text for completion in found} == offered


def test_completions_of_files(tmp_path):
    (tmp_path / "talk.json").touch()
    line = Document(f"/load {tmp_path}/ta")
    found = Commands(COMMANDS, settable()).get_completions(line, CompleteEvent())
    assert [completion.text for completion in found] == ["lk.json"]


class Screen:
    """A program on a pseudo-terminal: its output, and key presses."""

    def __init__(self, master):
        self._master = master
        self.seen = ""

    def press(self, keys):
        os.write(self._master, keys.encode())

    def until(self, pattern):
        """Wait until this text appears, and drop everything up to its end."""
        end = time.monotonic() + PATIENCE
        while not (found := re.search(pattern, self.seen)):
            ready, _, _ = select.select([self._master], [], [], end - time.monotonic())
            assert ready, f"{pattern} was not seen in {self.seen!r}"
            self.seen += os.read(self._master, 4096).decode(errors="replace")
        self.seen = self.seen[found.end() :]
        return found


@contextlib.contextmanager
def on_a_terminal(folder, *words, **more):
    """The program with these arguments and environment variables."""
    master, slave = pty.openpty()
    usual = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    own = {"XDG_STATE_HOME": str(folder), "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
    program = subprocess.Popen(
        [PROGRAM, *words], stdin=slave, stdout=slave, stderr=slave, env=usual | own | more,
        start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    try:
        yield Screen(master), program
    finally:
        program.kill()
        program.wait()
        os.close(master)


def test_a_chat_on_a_terminal(tmp_path):
    """A message is answered; Ctrl-C stops a long answer, and the chat continues with its text;
    Ctrl-D quits with exit status 0."""
    words = ("chat", "story", "-t", "1", "--ignore-eos", "-n", "-1", "--context-shift")
    with on_a_terminal(tmp_path, *words) as (screen, program):
        screen.until(r"\(story, a context of 512 tokens; /help tells more, Ctrl-D leaves\)")
        screen.until(SIGN)
        screen.press("Tell me a story." + ENTER)
        screen.until(r"story\.[\s\S]*[a-z]{3,} [a-z]{3,}")
        program.send_signal(signal.SIGINT)
        screen.until(r"\[stopped\]")
        screen.press("/stats" + ENTER)
        screen.until(r"conversation: 2 messages, \d+ tokens of 512")
        screen.until(SIGN)
        screen.press(CTRL_C)
        screen.until("Ctrl-D leaves")
        screen.until(SIGN)
        screen.press(CTRL_D)
        screen.until("total time")
        assert program.wait(timeout=PATIENCE) == 0
    assert "+/stats" in (tmp_path / "assay" / reading.HISTORY).read_text()


@pytest.mark.parametrize("more", [{}, {"NO_COLOR": "1"}])
def test_no_colour(tmp_path, more):
    """A note is yellow on a terminal, unless NO_COLOR is set."""
    words = ("run", "story", "-p", "Once", "-n", "1", "-t", "1", "--mlock")
    with on_a_terminal(tmp_path, *words, **more) as (screen, program):
        found = screen.until(r"(\x1b\[33m)?note: --mlock")
        screen.until("total time")
        assert program.wait(timeout=PATIENCE) == 0
    assert bool(found[1]) != bool(more)
