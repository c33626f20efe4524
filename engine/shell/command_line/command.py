"""Commands for typer: sections of --help, llama.cpp's option names, and messages that name an
option as it was typed."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from engine.shell.command_line.groups import ALSO, FIELDS, METAVARS, long_name
from engine.shell.command_line.words import MODEL, InsteadError, Line, Spelling, understood

UsageError: type[Any] = typer.BadParameter.__mro__[1]  # typer's own copy, under names that change
OF_A_MODEL = ("-m", "--model")
FORMS = {  # the options that give a form of answers, by the engine's names
    "the JSON schema|structured_outputs: json": ("json_schema", "json_schema_file"),
    "the grammar|structured_outputs: grammar": ("grammar", "grammar_file"),
    "the regular expression|structured_outputs: regex": ("regex",),
    "the choice|structured_outputs: choice": ("choice",),
}
_line, _options = Line(), dict[str, str]()  # of the running command: an option of each parameter


class Command(TyperCommand):
    """One of the program's commands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command's arguments, after llama.cpp's names are resolved."""
        global _line, _options
        _options = {p.name: long_name(p.opts) for p in self._own(ctx)}
        try:
            _line = understood(args, self.spellings(ctx))
        except InsteadError as instead:
            raise UsageError(str(instead), ctx) from None
        if _line.notes and "--threads" not in _options.values():
            raise UsageError(f"{_line.notes[0].split()[0]}: this command runs no model", ctx)
        return super().parse_args(ctx, _line.words)

    def spellings(self, ctx: Any) -> dict[str, Spelling]:
        """Every name that is understood."""
        known = {
            name: Spelling(name if name in p.secondary_opts else long_name(p.opts), not p.is_flag)
            for p in self._own(ctx)
            for name in (*p.opts, *p.secondary_opts)
        }
        other = {name: known[ours] for name, ours in ALSO.items() if ours in known}
        if any(p.name == "model" for p in self.get_params(ctx)):
            other |= dict.fromkeys(OF_A_MODEL, Spelling(MODEL, True))
        return other | known

    def _own(self, ctx: Any) -> list[Any]:
        return [p for p in self.get_params(ctx) if p.param_type_name == "option"]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """A section of --help for each group of options, and for the command's own."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                argument = parameter.param_type_name == "argument"
                names = str(parameter.metavar if argument else record[0])
                for kind, shown in METAVARS.items():
                    names = names.replace(f"<{kind.__name__.lower()}>", shown)
                section = "Arguments" if argument else getattr(parameter, "rich_help_panel", None)
                sections.setdefault(section or "Options", []).append((names, record[1]))
        for section, rows in sections.items():
            with formatter.section(section):
                formatter.write_dl(rows)


class Program(TyperGroup):
    """All commands, grouped by purpose."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002  click's own
        """A section for each kind of command."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            kind = getattr(command, "rich_help_panel", None) or "Other commands"
            sections.setdefault(kind, []).append((name, command.get_short_help_str(200)))
        for kind, rows in sections.items():
            with formatter.section(kind):
                formatter.write_dl(rows, col_max=11)


def notes() -> list[str]:
    """Notes on the given options."""
    return list(_line.notes)


def typed(field: str) -> list[tuple[str, str]]:
    """The (name, value) pairs that were typed for an option of this field."""
    return _line.typed.get(_option(field), [])


def spelt(message: str) -> str:
    """A message with options as they were typed in place of the engine's names: one-word names are
    also plain words (a file, a context), unless a message begins with them."""
    for said, options in FORMS.items():
        name = next((shown(field) for field in options if typed(field)), shown(options[0]))
        message = re.sub(rf"^({said})(?=:? )", name.replace("\\", r"\\"), message)
        if any(map(typed, options)):
            message = message.replace("structured_outputs", name)
    for field in FIELDS | _options:
        if _options and _option(field) not in _options.values():
            continue  # not one of this command's
        name = (
            rf"(?<!\S){field}(?=[\s,:;]|$)" if "_" in field else rf"^{field}(?= is | must | needs )"
        )
        message = re.sub(name, shown(field), message)
    return message


def shown(field: str) -> str:
    """The option of this field as it was typed, else by its long name."""
    given = typed(field)
    return given[-1][0] if given else _option(field)


def _option(field: str) -> str:
    return _options.get(field) or FIELDS.get(field, field)


@contextmanager
def as_usage(**names: str) -> Iterator[None]:
    """Turn the engine's complaints about an option's value into usage errors; `names` maps the
    engine's names to fields of options. A missing package is no usage error."""
    try:
        yield
    except ImportError:
        raise
    except ValueError as error:
        message = str(error)
        for name, field in names.items():
            message = re.sub(rf"^{name}(?= )", field, message)
        raise typer.BadParameter(spelt(message)) from None


def misuse(error: Any) -> str:
    """A parser's complaint in one line."""
    parameter = getattr(error, "param", None)
    if parameter is None or not error.message:
        line = error.message if isinstance(error, typer.BadParameter) else ""
        line = " ".join((line or error.format_message()).split()).removesuffix(".")
    elif parameter.param_type_name == "option":
        given = typed(parameter.name)
        value = f" is {given[-1][1]!r}" if given and given[-1][1] else ""
        line = f"{given[-1][0] if given else long_name(parameter.opts)}{value}: {error.message}"
    else:
        line = f"{parameter.metavar or parameter.name}: {error.message}"
    line = line.replace(", unable to parse string as an integer", "")
    where = error.ctx.command_path if error.ctx else "assay"
    return f"{line} ({where} --help tells more)"
