"""assay fleet: the work of other commands, on every machine of a Dask cluster."""

from typing import Annotated, Any

import typer

from bench.shell.fleet.distribution import LOCAL
from bench.shell.fleet.machines import bench, certify, tune
from bench.shell.fleet.suite import conformance
from bench.shell.fleet.texts import batch, embed, imatrix, perplexity, score
from engine.shell.command_line.command import Command, Program
from engine.shell.command_line.groups import spread

COMMANDS = perplexity, imatrix, embed, batch, score, certify, tune, bench, conformance


class Fleets(Program):
    """`--local N` stands for a scheduler."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for at, word in enumerate(args[:2]):
            name, equals, count = word.partition("=")
            if name == "--local":
                taken = 1 if equals else 2
                count = count if equals else next(iter(args[at + 1 : at + 2]), "")
                args = [*args[:at], LOCAL + count, *args[at + taken :]]
        return super().parse_args(ctx, args)


fleet = typer.Typer(
    cls=Fleets,
    help="Run a command on every machine of a Dask cluster.\n\n"
    "SCHEDULER is its address, such as tcp://host:8786; --local N in its place starts N workers"
    " on this machine. Workers have to have this very assay, and tools of the same versions; those"
    " that have not are told by name and get no share. pip install 'assay[fleet]'",
    short_help="Run a command on every machine of a Dask cluster.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in COMMANDS:
    fleet.command(cls=Command)(spread(command))


@fleet.callback()
def options(
    asked: typer.Context,
    scheduler: Annotated[
        str, typer.Argument(metavar="SCHEDULER", help="Its address, or --local N.")
    ],
) -> None:
    """What the commands of a fleet have in common."""
    asked.obj = scheduler
