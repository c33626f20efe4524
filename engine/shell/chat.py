"""assay chat: chat with a model through its own chat template, or another."""

import json
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from engine.shell.command_line import options as o
from engine.shell.command_line.groups import option

if TYPE_CHECKING:
    from collections.abc import Callable

    from engine.generation.completion import Piece
    from engine.shell.talk.reading import Reader
    from engine.shell.talk.slash import Chat

ANSWER = o.Sampling(max_tokens=512)
MESSAGES = ".messages.json"  # beside a session, its messages


def chat(
    model: o.ModelName,
    *,
    system: str | None = option(None, "The system message.", also="-sys --system-prompt"),
    template: str = o.TEMPLATE,
    text: o.Text,
    as_json: o.Json = False,
    sampling: o.Sampling = ANSWER,
    loading: o.Loading,
    drafting: o.Drafting,
) -> None:
    """Chat with a model. Ctrl-C stops an answer, Ctrl-D exits, /help lists commands.

    If standard input is no terminal, each line of it is a message, and each answer is a line or
    more; with --json it is one line of JSON.
    """
    from engine.atomic_write import check
    from engine.shell.prompts import prompt_text, unescaped_sampling
    from engine.shell.show import loaded, print_timings
    from engine.shell.talk.conversation import Conversation
    from engine.shell.talk.slash import Chat
    from engine.shell.terminal import silence

    if text.quiet:
        silence()
    if text.escape:
        sampling = unescaped_sampling(sampling)
    loading.options()  # usage errors come first
    params, speculation = sampling.params(), drafting.settings()
    source = _template(model, template)
    first = None
    if text.prompt is not None or text.file is not None:
        first = prompt_text(text.prompt, text.file, text.escape)
    if text.session is not None:
        check(text.session)
    with loaded(
        model,
        loading,
        draft=drafting.draft or None,
        speculation=speculation,
        sampling=params,
        background=not (loading.ram_budget or speculation),
    ) as engine:
        conversation = Conversation(engine, sampling, text, source)
        if text.session is not None and text.session.exists():
            conversation.load(_beside(text.session))
            engine.restore(text.session)
        if system:
            conversation.system = system
        talk = Chat(conversation, _reader(as_json), _tell(text.quiet or as_json))
        if talk.reader.edits and not text.quiet:
            room = engine.model.cells.capacity
            talk.tell(f"({model}, a context of {room} tokens; /help tells more, Ctrl-D leaves)")
        if first:
            _answered(talk, first, as_json)
        while not talk.over and (line := talk.reader.ask()) is not None:
            _line(talk, line, as_json)
        if not (as_json or text.quiet):
            print_timings(engine)
        if text.session is not None:
            engine.save(text.session)
            conversation.save(_beside(text.session))


def _template(model: str, given: str) -> str | None:
    """The source of the requested template, None for the model's own; ChatError, before weights are
    loaded, if it is missing or unreadable."""
    from engine.chat import ChatTemplate, chat_template_source
    from engine.chat_templates import TEMPLATES, template_source
    from engine.embedded import resolve
    from engine.gguf.file import GGUFFile

    if given:
        ChatTemplate(source := template_source(given), "", "")
        return source
    with GGUFFile(resolve(model)) as file:
        try:
            ChatTemplate(chat_template_source(file.metadata), "", "")
        except ValueError as error:
            names = ", ".join(TEMPLATES)
            raise type(error)(f"{model}: {error}; give --template FILE or one of {names}") from None
    return None


def _reader(plain: bool) -> "Reader":
    """An editing terminal if there is one, unless programs read the answers."""
    from engine.shell.talk.reading import Lines, Terminal
    from engine.shell.talk.slash import COMMANDS, settable

    if plain or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return Lines()
    return Terminal(COMMANDS, settable())


def _tell(aside: bool) -> "Callable[[str], None]":
    """How a chat prints what is no answer: to stderr where only answers are wanted."""
    return lambda line: print(line, file=sys.stderr if aside else sys.stdout, flush=True)


def _beside(session: Path) -> Path:
    return session.with_name(session.name + MESSAGES)


def _line(talk: "Chat", line: str, as_json: bool) -> None:
    from engine.shell.talk.slash import obey

    if not line.strip():
        return
    if not line.startswith("/"):
        _answered(talk, line, as_json)
        return
    try:
        obey(talk, line)
    except ValueError as error:
        print(f"({error})", file=sys.stderr)
    if talk.wants_answer:
        talk.wants_answer = False
        _answered(talk, None, as_json)


def _answered(talk: "Chat", question: str | None, as_json: bool) -> None:
    """Print the next answer, to the last question if none is given."""
    from engine.errors import EngineError
    from engine.shell.run import coloured, completion_json

    conversation = talk.conversation
    if question is not None:
        conversation.ask(question)
    asked = conversation.messages[-1]["content"]
    found: list[Piece] = []
    stopped = False
    try:
        with closing(conversation.answer()) as pieces:
            for piece in pieces:
                found.append(piece)
                if not as_json:
                    sys.stdout.write(coloured(piece) if conversation.text.colour else piece.text)
                    sys.stdout.flush()
    except KeyboardInterrupt:
        stopped = True
    except EngineError as error:
        print(f"({error}; your last message is forgotten)", file=sys.stderr)
        if as_json:
            print(json.dumps({"message": asked, "error": str(error)}), flush=True)
        return
    if as_json:
        line = completion_json(conversation.engine, found, conversation.sampling.logprobs)
        line |= {"finish_reason": "cancelled"} if stopped else {}
        print(json.dumps({"message": asked, **line}), flush=True)
    else:
        print(" [stopped]" if stopped else "", flush=True)
