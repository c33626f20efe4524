"""A conversation: its messages, and an engine's answers."""

import json
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engine.atomic_write import atomic_write
from engine.chat import ChatError, checked_messages
from engine.engine import Engine
from engine.errors import EngineError
from engine.file_errors import unreadable
from engine.generation.completion import Piece
from engine.shell.command_line.options import Sampling, Text

Message = dict[str, str]


@dataclass(slots=True)
class Conversation:
    """Messages so far, and how the next answer is generated; `template` is a source, None the
    model's. `retries` counts regenerations: with a seed each is another one."""

    engine: Engine
    sampling: Sampling
    text: Text
    template: str | None = None
    messages: list[Message] = field(default_factory=list)
    retries: int = 0

    @property
    def system(self) -> str | None:
        """The system message."""
        first = self.messages[:1]
        return first[0]["content"] if first and first[0]["role"] == "system" else None

    @system.setter
    def system(self, content: str | None) -> None:
        rest = self.messages[self.system is not None :]
        self.messages = ([_message("system", content)] if content else []) + rest

    def clear(self) -> None:
        """Drop all messages but the system message."""
        self.messages = self.messages[: self.system is not None]
        self.retries = 0

    def ask(self, question: str) -> None:
        """Add a user message; `answer` is next."""
        self.messages.append(_message("user", question))
        self.retries = 0

    def undo(self) -> str | None:
        """Remove the last question and its answer; returns the question, or None."""
        last = next((m for m in reversed(self.messages) if m["role"] == "user"), None)
        if last is None:
            return None
        while self.messages.pop() is not last:
            pass
        self.retries = 0
        return last["content"]

    def unanswer(self) -> bool:
        """Remove the last answer, to regenerate it; returns whether there is a question to
        answer."""
        if self.messages and self.messages[-1]["role"] == "assistant":
            self.messages.pop()
        self.retries += 1
        return bool(self.messages) and self.messages[-1]["role"] == "user"

    def answer(self) -> Generator[Piece, None, None]:
        """Stream the answer; what was generated is kept when it is interrupted. If that is nothing,
        the question is removed, as after an error (EngineError)."""
        said: list[str] = []
        whole = False
        try:
            sampling = self.sampling
            if sampling.seed is not None and sampling.seed >= 0:
                sampling = replace(sampling, seed=sampling.seed + self.retries)
            params = sampling.params()
            tokens = self._prompt()
            if sampling.nothing:
                return
            with closing(
                self.engine.stream(
                    tokens,
                    params,
                    context_shift=self.text.shifts(sampling),
                    keep=self.text.kept(tokens),
                )
            ) as pieces:
                for piece in pieces:
                    said.append(piece.text)
                    yield piece
            whole = True
        except EngineError:
            said.clear()
            raise
        finally:
            if whole or any(said):
                self.messages.append(_message("assistant", "".join(said)))
            else:
                self.undo()

    def _prompt(self) -> list[int]:
        """The messages as tokens; with context shift, without the oldest questions and answers that
        do not fit. ChatError if they cannot fit."""
        room, sent = self.engine.model.cells.capacity, self.messages
        first = int(self.system is not None)
        while True:
            tokens = self.engine.encode_chat(sent, self.template)
            later = (i for i, m in enumerate(sent) if i > first and m["role"] == "user")
            if len(tokens) <= room:
                return tokens
            if not self.text.context_shift or (at := next(later, None)) is None:
                raise ChatError(
                    f"the messages have {len(tokens)} tokens, the context holds {room}: /clear and"
                    " /undo make room, --context-shift lets go the oldest"
                )
            sent = sent[:first] + sent[at:]

    def tokens(self) -> int:
        """The number of tokens of the conversation as a prompt."""
        if not any(m["role"] == "user" for m in self.messages):
            return 0
        return len(self.engine.encode_chat(self.messages, self.template))

    def save(self, path: Path) -> None:
        """Write the messages as JSON, a list of {"role", "content"}."""
        with atomic_write(path) as file:
            file.write((json.dumps(self.messages, ensure_ascii=False, indent=1) + "\n").encode())

    def load(self, path: Path) -> None:
        """Replace the messages by a file's; ChatError, without changes, if it is invalid."""
        try:
            found: Any = json.loads(path.read_text(encoding="utf-8"))
            self.messages = checked_messages(found) if found else []
        except OSError as error:
            raise ChatError(unreadable(path, error)) from None
        except (ChatError, ValueError, RecursionError) as error:
            raise ChatError(f"{path}: these are no messages: {error}") from None
        self.retries = 0


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}
