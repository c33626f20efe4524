"""assay tune: measure the knobs of a model's kernels on this machine."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from engine.shell import options as o

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.table import Table

    from kernels.tuning import Tuned


def tune(
    model: o.ModelName,
    threads: o.Threads = 0,
    seconds: Annotated[float, typer.Option(help="About how long to measure.")] = 30.0,
    again: Annotated[bool, typer.Option("--again", help="Measure anew what is known.")] = False,
    as_json: o.Json = False,
) -> None:
    """Measure what suits this machine best at a model's sizes, and keep it for later loads.

    Knobs are how far ahead weights are asked for, from how many tokens on a matrix unit serves, and
    the like: none changes a bit of what a model says. The first load of a large model does the same
    in a few seconds.
    """
    from dataclasses import asdict

    from engine.engine import Engine
    from engine.options import Options
    from engine.shell.show import loading, stdout
    from engine.tune import Tuner
    from kernels.tuning import keep

    if not seconds > 0:
        raise typer.BadParameter(f"--seconds is more than 0, got {seconds:g}")
    with loading("packing weights (MB)") as watcher:
        options = Options(threads=threads, tune=False, progress=watcher)
        with Engine.load(model, options) as engine:
            plan, team = engine.model.plan, engine.model.team
            found = Tuner(plan, team, seconds, watcher.tuned).tuned(again)
    keep(found)
    if as_json:
        print(json.dumps([asdict(one) for one in found]))
    elif found:
        stdout().print(table_of(found))
    else:
        print("nothing new: all is known (--again), the weights are few, or the machine is busy")


def table_of(found: "Iterable[Tuned]") -> "Table":
    """What was chosen, against what there was, and what that gained for a single token."""
    from rich.table import Table

    from kernels.tuning import changes

    table = Table("kernel", "threads", "sizes", "chosen (before)", "gain", "least to most", "when")
    for one in found:
        low, high = one.spread
        table.add_row(
            one.kernel, str(one.threads), one.shape, changes(one),
            f"{one.gain:.3f}", f"{low:.3f} to {high:.3f}", one.when[:16],
        )  # fmt: skip
    return table
