"""The program's commands, one file each; rooms above the engine add theirs."""

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Annotated

import typer

from engine.shell import (
    batch,
    bundle,
    certify,
    chat,
    convert,
    embed,
    imatrix,
    inspect,
    ops,
    perplexity,
    place,
    plan,
    quantize,
    run,
    sparsify,
    tokenize,
    tune,
)
from engine.shell.command_line.command import Command, Program
from engine.shell.command_line.groups import spread

FIRST = """
Begin with a model that comes along, then with any GGUF file:

  assay run story -p "Once upon a time"
  assay chat MODEL.gguf

`assay COMMAND --help` tells what a command takes; docs/tutorial.md is an hour
with all of them.
"""
COMMANDS: dict[str, dict[Callable[..., None], str]] = {
    "Write": {
        run.run: "Continue a prompt.",
        chat.chat: "Chat with a model.",
        batch.batch: "Answer a file of prompts.",
        tokenize.tokenize: "Print a text's tokens.",
        embed.embed: "Print texts as vectors.",
    },
    "Models": {
        convert.convert: "Write a Hugging Face model as a GGUF file.",
        inspect.inspect: "Print a file's metadata and tensors, or change keys.",
        imatrix.imatrix: "Compute an importance matrix.",
        quantize.quantize: "Write a model in another weight format.",
        sparsify.sparsify: "Make a sparse model with predictors.",
        bundle.bundle: "Store each neuron's rows contiguously on disk.",
        perplexity.perplexity: "Measure how well a model predicts a text.",
    },
    "Kernels": {
        ops.ops: "List ops and their kernels.",
        certify.certify: "Try kernels and store certificates.",
        plan.plan: "Print the nodes of a step.",
        place.place: "Choose a sparse model's neurons for the GPU.",
        tune.tune: "Tune kernels for this machine.",
    },
}
ADDED = "Measure"  # by other rooms

app = typer.Typer(
    name="assay",
    cls=Program,
    help="A lab in which LLM kernels prove themselves before an engine may use them.",
    epilog="ASSAY_CACHE is the folder of certificates and compiled kernels; ASSAY_TRACEBACK=1"
    " shows where an error came from.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for kind, commands in COMMANDS.items():
    for command, summary in commands.items():
        app.command(cls=Command, short_help=summary, rich_help_panel=kind)(spread(command))
for added in entry_points(group="assay.commands"):
    command = added.load()
    if isinstance(command, typer.Typer):  # one with subcommands
        app.add_typer(command, name=added.name, rich_help_panel=ADDED)
    else:
        app.command(added.name, cls=Command, rich_help_panel=ADDED)(spread(command))


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
