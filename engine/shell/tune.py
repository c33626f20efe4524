"""assay tune: tune the knobs of a model's kernels on this machine."""

import json
from typing import TYPE_CHECKING

import typer

from engine.shell.command_line import options as o
from engine.shell.command_line.groups import option

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from engine.options import Progress
    from kernels.tuning import Tuned

NOTHING = "nothing new: all is known (--again), the weights are few, or the machine is busy"


def tune(
    model: o.ModelName,
    threads: o.Threads = 0,
    seconds: float = option(30.0, "Approximate measuring time."),
    again: bool = option(False, "Repeat known measurements."),
    as_json: o.Json = False,
) -> None:
    """Tune kernels for this machine at a model's sizes, and store the result for later loads.

    Knobs are prefetch distances, the number of tokens from which a matrix unit is used, and the
    like: none changes a bit of a model's output. The first load of a large model does the same in a
    few seconds.
    """
    from engine.shell.show import loading

    if not seconds > 0:
        raise typer.BadParameter(f"--seconds is more than 0, got {seconds:g}")
    with loading("packing weights (MB)") as watcher:
        found = tuned(model, threads, seconds, again, watcher)
    show_tuned(found, as_json, NOTHING)


def tuned(
    model: "str | Path", threads: int, seconds: float, again: bool, watcher: "Progress"
) -> "Sequence[Tuned]":
    """The knobs found for a model's kernels, which are stored."""
    from engine.compile.tune import Tuner
    from engine.engine import Engine
    from engine.options import Options
    from kernels.tuning import keep

    options = Options(threads=threads, tune=False, progress=watcher)
    with Engine.load(model, options) as engine:
        plan, team = engine.model.plan, engine.model.team
        found = Tuner(plan, team, seconds, watcher.tuned).tuned(again)
    keep(found)
    return found


def show_tuned(found: "Sequence[Tuned]", as_json: bool, nothing: str) -> None:
    """Print chosen knobs beside the defaults, and the gain for a single token; one line if there
    are none."""
    from dataclasses import asdict

    from engine.shell.terminal import print_table
    from kernels.tuning import changes

    if as_json:
        print(json.dumps([asdict(one) for one in found]))
        return
    if not found:
        print(nothing)
        return
    print_table(
        ("kernel", "threads", "sizes", "chosen (before)", "gain", "least to most", "when"),
        (
            (one.kernel, one.threads, one.shape, changes(one), f"{one.gain:.3f}",
             "{:.3f} to {:.3f}".format(*one.spread), one.when[:16])
            for one in found
        ),
    )  # fmt: skip
