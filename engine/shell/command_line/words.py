"""Resolves a command's arguments: its own options, llama.cpp's names for them, and llama.cpp's
options that do not exist here."""

import tomllib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

MODEL = "MODEL"  # -m means an argument, not an option
TABLE = Path(__file__).with_name("llama_cpp.toml")
SWITCHED = ("on", "off", "auto", "0", "1")  # values of an option that may have none


class InsteadError(ValueError):
    """An option of llama.cpp's that does not exist here; the message tells what to use."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """The option that a name stands for, and whether a value follows."""

    option: str
    takes: bool


@dataclass(frozen=True, slots=True)
class Line:
    """The arguments as the command's parser takes them; the (name, value) pairs that were typed, by
    option; and notes on options without effect."""

    words: list[str] = field(default_factory=list)
    typed: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Foreign:
    """An option of llama.cpp's without an equivalent here; `value` is "N" where one follows,
    "[on|off]" where it may."""

    about: str
    refused: bool
    value: str


def understood(words: Sequence[str], known: Mapping[str, Spelling]) -> Line:
    """The line with every option by its own name, and a model given by -m before other arguments.

    Raises `InsteadError` for an option of llama.cpp's that has no equivalent. Unknown ones stay as
    they are: the parser complains.
    """
    line, queue, model = Line(), deque(words), list[str]()
    while queue:
        word = queue.popleft()
        if word == "--":
            line.words.extend((word, *queue))
            break
        name, value = _parted(word, known)
        if spelling := known.get(name):
            if spelling.takes and value is None and queue:
                value = queue.popleft()
            line.typed.setdefault(spelling.option, []).append((name, value or ""))
            if value is None:
                line.words.append(spelling.option)
            elif not spelling.takes:
                line.words.append(word)
            elif spelling.option == MODEL:
                model = [value]
            else:
                line.words.extend((spelling.option, value))
        elif foreign := foreign_options().get(name):
            if foreign.refused:
                raise InsteadError(f"{name} is an option of llama.cpp; here: {foreign.about}")
            switched = foreign.value and queue and queue[0] in SWITCHED
            if value is None and queue and (foreign.value == "N" or switched):
                queue.popleft()
            line.notes.append(f"{name} changes nothing here: {foreign.about}")
        else:
            line.words.append(word)
    return Line(model + line.words, line.typed, line.notes)


def _parted(word: str, known: Mapping[str, Spelling]) -> tuple[str, str | None]:
    """A name, and a value joined to it: --top-k=5, -n5."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        return name, value if equals else None
    letter = word[:2]
    if word not in known and word not in foreign_options() and letter in known:
        return (letter, word[2:]) if known[letter].takes else (word, None)
    return word, None


@cache
def foreign_options() -> dict[str, Foreign]:
    """The table, by name."""
    found: dict[str, Foreign] = {}
    for section, rows in tomllib.loads(TABLE.read_text()).items():
        for row, about in rows.items():
            *names, last = row.replace(",", "").split()
            value = "" if last.startswith("-") else last
            for name in names if value else (*names, last):
                found[name] = Foreign(about, section == "instead", value)
    return found
