"""Groups of options: the program's options are the engine's, defined once."""

from dataclasses import dataclass, fields
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from engine import SamplingParams
from engine.options import Options
from engine.shell.command_line import options
from engine.shell.command_line.groups import Only, Without, option, spread
from engine.speculation.settings import KINDS


@dataclass(frozen=True)
class Paint:
    colour: str = option("red", "Of the wall.", "-c")
    coats: int = option(1, "How many.")
    gloss: bool = option(False, "Let it shine.")


def parse(command, *arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(spread(command))
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.output


def test_loading_options_equal_the_engines() -> None:
    """Every loading option is a field of Options, with the same default."""
    engine = {field.name: field.default for field in fields(Options)}
    for field in fields(options.Loading):
        assert (field.default or None) == (engine[field.name] or None), field.name


def test_sampling_and_drafting_options_equal_the_engines() -> None:
    forms = {"json_schema", "json_schema_file", "grammar", "grammar_file", "regex", "choice"}
    names = {
        f.name for f in fields(options.Sampling)
    } - forms  # those are one parameter of Python's
    assert names <= {f.name for f in fields(SamplingParams)}
    known = {f.name: f.default for kind in KINDS.values() for f in fields(kind)}
    for field in fields(options.Drafting):
        if field.name in known and field.name != "draft_max":  # its default is the kind's own
            assert known[field.name] == field.default, field.name


def test_given_options_fill_a_group() -> None:
    def command(wall: str, *, paint: Paint = Paint(coats=2), dry: bool = False) -> None:
        print(wall, paint, dry)

    assert parse(command, "north", "-c", "blue", "--gloss") == (
        0, "north Paint(colour='blue', coats=2, gloss=True) False\n"
    )  # fmt: skip


@pytest.mark.parametrize("choice", [Only("colour"), Without("coats", "gloss")])
def test_parts_of_a_group(choice) -> None:
    """Options that a command does not offer are unknown to it, and keep their defaults."""

    def command(*, paint: Annotated[Paint, choice]) -> None:
        print(paint.colour, paint.coats)

    assert parse(command, "--colour", "blue") == (0, "blue 1\n")
    assert parse(command, "--coats", "3")[0] == 2


def test_unknown_parts_are_refused() -> None:
    def command(*, paint: Annotated[Paint, Only("color")]) -> None: ...

    with pytest.raises(TypeError, match="Paint has no color"):
        spread(command)
