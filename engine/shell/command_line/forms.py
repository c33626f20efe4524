"""Structured outputs from the command line."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from engine.shell.command_line.command import as_usage, shown

if TYPE_CHECKING:
    from engine.sampling.structured_params import StructuredOutputsParams

FORMS = {  # of StructuredOutputsParams, by the options that give them
    "json_schema": "json",
    "json_schema_file": "json",
    "grammar": "grammar",
    "grammar_file": "grammar",
    "regex": "regex",
    "choice": "choice",
}


def form(given: dict[str, Any]) -> "StructuredOutputsParams | None":
    """The form given by these options; a usage error if it is invalid, or if there are two."""
    asked = {field: text for field, text in given.items() if text not in (None, [])}
    if not asked:
        return None
    if len(asked) > 1:
        names = " and ".join(map(shown, asked))
        raise typer.BadParameter(f"{names} exclude each other: an answer has one form")
    from engine.sampling.structured import check
    from engine.sampling.structured_params import StructuredOutputsParams

    [(field, text)] = asked.items()
    with as_usage():
        check(found := StructuredOutputsParams(**{FORMS[field]: text}))
    return found


def text_of(file: str | None) -> str | None:
    """The contents of a file that an option names."""
    from engine.file_errors import unreadable
    from engine.shell.prompts import read_text

    if file is None:
        return None
    try:
        return read_text(Path(file))
    except OSError as error:
        raise ValueError(unreadable(Path(file), error)) from None
