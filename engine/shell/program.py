"""The program's commands, one file each; rooms above the engine add theirs. A command is imported,
and described to typer, when it is used: all would take a tenth of a warm start."""

from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from importlib.metadata import EntryPoint, entry_points
from pkgutil import resolve_name
from typing import Annotated, Any

import typer
from typer.main import get_group

from engine.shell.command_line.command import Command, Program
from engine.shell.command_line.groups import spread

FIRST = """
Begin with a model that comes along, then with any GGUF file:

  assay run story -p "Once upon a time"
  assay chat MODEL.gguf

`assay COMMAND --help` tells what a command takes; docs/tutorial.md is an hour
with all of them.
"""
COMMANDS = {  # by section of --help: a command's name, and its summary
    "Write": {
        "run": "Continue a prompt.",
        "chat": "Chat with a model.",
        "batch": "Answer a file of prompts.",
        "tokenize": "Print a text's tokens.",
        "embed": "Print texts as vectors.",
    },
    "Models": {
        "convert": "Write a Hugging Face model as a GGUF file.",
        "inspect": "Print a file's metadata and tensors, or change keys.",
        "imatrix": "Compute an importance matrix.",
        "quantize": "Write a model in another weight format.",
        "sparsify": "Make a sparse model with predictors.",
        "bundle": "Store each neuron's rows contiguously on disk.",
        "perplexity": "Measure how well a model predicts a text.",
    },
    "Kernels": {
        "ops": "List ops and their kernels.",
        "certify": "Try kernels and store certificates.",
        "plan": "Print the nodes of a step.",
        "place": "Choose a sparse model's neurons for the GPU.",
        "tune": "Tune kernels for this machine.",
    },
}
ADDED = "Measure"  # by other rooms
SETTINGS: dict[str, Any] = {"rich_markup_mode": None, "pretty_exceptions_enable": False}


class Commands(Mapping[str, Any]):
    """The commands by name, each built for typer when it is looked up."""

    def __getitem__(self, name: str) -> Any:
        """KeyError if there is none."""
        return _made(name, self._ours.get(name) or self._added[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._ours | self._added)

    def __len__(self) -> int:
        return len(self._ours | self._added)

    @cached_property
    def _ours(self) -> dict[str, Any]:
        return {name: (kind, own[name]) for kind, own in COMMANDS.items() for name in own}

    @cached_property
    def _added(self) -> dict[str, Any]:
        return {point.name: point for point in entry_points(group="assay.commands")}


@cache
def _made(name: str, found: tuple[str, str] | EntryPoint) -> Any:
    alone = typer.Typer(**SETTINGS)
    if isinstance(found, tuple):
        kind, about = found
        command = resolve_name(f"engine.shell.{name}:{name}")
    else:
        kind, about, command = ADDED, None, found.load()
    if isinstance(command, typer.Typer):  # one with subcommands
        alone.add_typer(command, name=name, rich_help_panel=kind)
    else:
        described = alone.command(name, cls=Command, short_help=about, rich_help_panel=kind)
        described(spread(command))
    return get_group(alone).commands[name]


class Assay(Program):
    """The program, with its commands looked up lazily."""

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**{**attrs, "commands": Commands()})


app = typer.Typer(
    name="assay",
    cls=Assay,
    help="An LLM inference engine and kernel lab: kernels are tested against readable references.",
    epilog="ASSAY_CACHE is the folder of certificates and compiled kernels; ASSAY_TRACEBACK=1"
    " shows where an error came from.",
    invoke_without_command=True,
    **SETTINGS,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"assay {version('assay')}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Options of the program itself; without a command, print where to begin."""
    if context.invoked_subcommand is None:
        print(context.get_help())
        print(FIRST, end="")
