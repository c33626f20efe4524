"""Input of a chat: an editing terminal, or plain lines."""

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TextIO

from platformdirs import user_state_path
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import (
    CompleteEvent,
    Completer,
    Completion,
    PathCompleter,
    WordCompleter,
)
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

SIGN, MORE = "> ", ". "
HISTORY = "chat_history"


class Reader(Protocol):
    """Source of a chat's messages; with `multi` a message may have several lines. It `edits` where
    a user sits at a terminal."""

    edits: bool
    multi: bool

    def ask(self) -> str | None:
        """The next message, perhaps empty; None at the end."""


class Lines:
    """Plain lines of a file; with `multi` an empty line ends a message."""

    edits = False

    def __init__(self, file: TextIO | None = None) -> None:
        self.multi = False
        self._file = file or sys.stdin

    def ask(self) -> str | None:
        line = self._file.readline()
        if not line:
            return None
        message = line.rstrip("\n")
        while self.multi and not message.startswith("/") and line.strip():
            line = self._file.readline()
            message += "\n" + line.rstrip("\n")
        return message.rstrip("\n")


class Terminal:
    """A line editor with history and completion of commands. Alt-Enter begins another line; with
    `multi` Enter does, and Alt-Enter sends. Ctrl-C clears the line, and on an empty one tells how
    to exit."""

    edits = True

    def __init__(self, commands: Iterable[str], names: Iterable[str], **more: Any) -> None:
        self.multi = False
        self.session: PromptSession[str] = PromptSession(
            history=more.pop("history", None) or kept_history(),
            completer=Commands(commands, names),
            complete_while_typing=False,
            key_bindings=_keys(lambda: self.multi),
            multiline=Condition(lambda: self.multi),
            prompt_continuation=MORE,
            **more,
        )

    def ask(self) -> str | None:
        try:
            return self.session.prompt(SIGN)
        except EOFError:
            return None
        except KeyboardInterrupt:
            if not self.session.default_buffer.text:
                print("(Ctrl-D leaves)", file=sys.stderr)
            return ""


class Commands(Completer):
    """Completes slash commands, and the files or names that they take."""

    def __init__(self, commands: Iterable[str], names: Iterable[str]) -> None:
        self._first = WordCompleter([*commands], sentence=True)
        self._taken: dict[str, Completer] = {
            "/set": WordCompleter([*names], sentence=True),
            "/save": PathCompleter(expanduser=True),
            "/load": PathCompleter(expanduser=True),
        }

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        if not document.text.startswith("/"):
            return ()
        command, space, rest = document.text_before_cursor.partition(" ")
        if not space:
            return self._first.get_completions(document, complete_event)
        if command not in self._taken:
            return ()
        return self._taken[command].get_completions(Document(rest), complete_event)


def _keys(multi: Callable[[], bool]) -> KeyBindings:
    keys = KeyBindings()

    @keys.add("escape", "enter", filter=Condition(lambda: not multi()))
    def _another_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


class _Kept(FileHistory):
    """A history on disk; where the disk is full, in memory only."""

    def store_string(self, string: str) -> None:
        with suppress(OSError):
            super().store_string(string)


def kept_history(folder: Path | None = None) -> History:
    """The history of all chats, in the user's state folder; in memory where that cannot be
    written."""
    folder = folder or user_state_path("assay")
    file = folder / HISTORY
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600))
    except OSError:
        return InMemoryHistory()
    return _Kept(str(file))
