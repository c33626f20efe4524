"""Slash commands of a chat."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args

import typer

from engine.shell.command_line.command import shown
from engine.shell.command_line.groups import names_of
from engine.shell.command_line.options import Sampling
from engine.shell.talk.conversation import Conversation
from engine.shell.talk.reading import Reader

ON = {"on": True, "true": True, "yes": True, "1": True}
SWITCH = ON | {"off": False, "false": False, "no": False, "0": False}
OWN = ("logprobs",)  # options of the program, not of a chat


@dataclass(slots=True)
class Chat:
    """A conversation, its input and output, whether an answer is wanted, and whether the chat is
    over."""

    conversation: Conversation
    reader: Reader
    tell: Callable[[str], None]
    wants_answer: bool = False
    over: bool = False


def obey(chat: Chat, line: str) -> None:
    """Run a slash command; ValueError with the reason, in one line."""
    name, _, rest = line.partition(" ")
    if name not in COMMANDS:
        near = [known for known in COMMANDS if known.startswith(name)]
        if len(near) != 1 or name == "/":
            raise ValueError(f"there is no {name}; /help lists what there is")
        name = near[0]
    _, _, do = COMMANDS[name]
    do(chat, rest.strip())


def _help(chat: Chat, _: str) -> None:
    rows = [(f"{name} {takes}".strip(), about) for name, (takes, about, _) in COMMANDS.items()]
    chat.tell("\n".join(f"  {what:17} {about}" for what, about in rows))
    if chat.reader.edits:
        chat.tell("  Ctrl-C stops an answer, Alt-Enter begins another line, Tab completes.")


def _exit(chat: Chat, _: str) -> None:
    chat.over = True


def _clear(chat: Chat, _: str) -> None:
    chat.conversation.clear()
    chat.tell("(all is forgotten but the system message)")


def _retry(chat: Chat, _: str) -> None:
    if not chat.conversation.unanswer():
        raise ValueError("there is no question to answer again")
    chat.wants_answer = True


def _undo(chat: Chat, _: str) -> None:
    question = chat.conversation.undo()
    if question is None:
        raise ValueError("there is nothing to undo")
    chat.tell(f"(forgotten: {' '.join(question.split())[:60]})")


def _system(chat: Chat, text: str) -> None:
    if text:
        chat.conversation.system = text
    system = chat.conversation.system
    chat.tell(f"system: {system}" if system else "(there is no system message)")


def _save(chat: Chat, file: str) -> None:
    path = _file(file)
    chat.conversation.save(path)
    chat.tell(f"(saved: {path}, {len(chat.conversation.messages)} messages)")


def _load(chat: Chat, file: str) -> None:
    path = _file(file)
    chat.conversation.load(path)
    chat.tell(f"(loaded: {path}, {len(chat.conversation.messages)} messages)")


def _file(given: str) -> Path:
    if not given:
        raise ValueError("a file is wanted, as in /save talk.json")
    return Path(given).expanduser()


def _stats(chat: Chat, _: str) -> None:
    engine = chat.conversation.engine
    times = engine.timings
    held, room = chat.conversation.tokens(), engine.model.cells.capacity
    chat.tell(
        f"last answer: prompt {times.prompt.tokens} tokens, {times.prompt.rate:.1f} tokens/s;"
        f" answer {times.eval.tokens} tokens, {times.eval.rate:.1f} tokens/s\n"
        f"conversation: {len(chat.conversation.messages)} messages, {held} tokens of {room}"
    )


def _multi(chat: Chat, _: str) -> None:
    chat.reader.multi = not chat.reader.multi
    chat.tell(
        "(several lines a message: Alt-Enter sends, /multi ends this)"
        if chat.reader.multi
        else "(one line a message)"
    )


def settable() -> dict[str, str]:
    """The names that /set takes, with their fields: as on the command line without dashes."""
    called = names_of(Sampling)
    return {name.lstrip("-"): field for field in _fields() for name in (*called[field], field)}


def _set(chat: Chat, given: str) -> None:
    sampling = chat.conversation.sampling
    name, _, text = given.partition(" ")
    known = settable()
    if not name:
        called = names_of(Sampling)
        lines = [f"{called[f][0].lstrip('-')} {_shown(getattr(sampling, f))}" for f in _fields()]
        chat.tell("  " + "\n  ".join(lines))
        return
    if name.lstrip("-") not in known:
        raise ValueError(f"{name} is nothing that can be set here; /set lists what can")
    field = known[name.lstrip("-")]
    if text:
        changed = replace(sampling, **{field: _value(field, name, text.strip())})
        try:
            changed.params()
        except typer.BadParameter as error:
            raise ValueError(error.message.replace(shown(field), name, 1)) from None
        chat.conversation.sampling = changed
    chat.tell(f"{name} {_shown(getattr(chat.conversation.sampling, field))}")


def _fields() -> list[str]:
    return [f.name for f in fields(Sampling) if f.name not in OWN]


def _value(field: str, name: str, text: str) -> Any:
    """A value of a field's type; several are separated by spaces."""
    told = next(f for f in fields(Sampling) if f.name == field)
    kinds = get_args(told.type) or (told.type,)
    if type(None) in kinds and text in ("none", "off"):
        return None
    if reads := told.metadata["more"]["callback"]:
        return reads(text)
    try:
        if kinds[0] is bool:
            return SWITCH[text.lower()]
        return kinds[0](text) if kinds[0] in (int, float, str) else text.split()
    except (KeyError, ValueError):
        want = {bool: "on or off", int: "a whole number", float: "a number"}[kinds[0]]
        raise ValueError(f"{name} is {text!r}: want {want}") from None


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        value = ", ".join(value)
    return "none" if value in (None, "") else " ".join(str(value).split())[:60]


COMMANDS: dict[str, tuple[str, str, Callable[[Chat, str], None]]] = {
    "/help": ("", "What there is.", _help),
    "/clear": ("", "Forget the conversation, but not the system message.", _clear),
    "/retry": ("", "Another answer to the last question.", _retry),
    "/undo": ("", "Forget the last question and its answer.", _undo),
    "/system": ("TEXT", "What the system message says; alone it shows it.", _system),
    "/save": ("FILE", "Write the messages as JSON.", _save),
    "/load": ("FILE", "Go on from such a file.", _load),
    "/stats": ("", "Speed of the last answer, and how full the context is.", _stats),
    "/set": ("NAME VALUE", "Change how tokens are chosen, as /set temperature 0.5.", _set),
    "/multi": ("", "Messages of several lines, sent by Alt-Enter; the same ends it.", _multi),
    "/exit": ("", "Leave, as Ctrl-D does.", _exit),
    "/quit": ("", "The same.", _exit),
}
