"""The program's commands, one file each; rooms that the engine does not know add theirs."""

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Annotated

import typer

from engine.shell import (
    bundle,
    certify,
    chat,
    convert,
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

app = typer.Typer(
    name="assay",
    help="A lab in which LLM kernels prove themselves before an engine may use them.",
    epilog="ASSAY_CACHE is the folder of certificates and compiled kernels; ASSAY_TRACEBACK=1"
    " shows where an error came from.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS: dict[Callable[..., None], str] = {
    run.run: "Continue a prompt.",
    chat.chat: "Talk to a model.",
    tokenize.tokenize: "Print a text's tokens.",
    convert.convert: "Write a Hugging Face model as a GGUF file.",
    inspect.inspect: "Print a file's metadata and tensors, or change keys.",
    imatrix.imatrix: "Find out which columns of weights matter.",
    quantize.quantize: "Write a model in another weight format.",
    sparsify.sparsify: "Make a sparse model with predictors.",
    bundle.bundle: "Bring each neuron's rows together on disk.",
    perplexity.perplexity: "Measure how well a model foretells a text.",
    plan.plan: "Print the nodes of a step.",
    place.place: "Choose a sparse model's neurons for the GPU.",
    ops.ops: "List ops and their kernels.",
    certify.certify: "Try kernels, keep certificates.",
    tune.tune: "Measure what suits this machine.",
}
for command, summary in COMMANDS.items():
    app.command(short_help=summary)(command)
for added in entry_points(group="assay.commands"):
    app.command(added.name)(added.load())


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"assay {version('assay')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it, end.")
    ] = False,
) -> None:
    """Options of the program itself."""
