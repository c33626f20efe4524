"""assay predict: how fast CUDA kernels should be on a GPU that nobody has at hand."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from bench.shell.display import grid
from engine.shell.command_line import options as o
from engine.shell.command_line.groups import option

if TYPE_CHECKING:
    from bench.cuda.predict import Prediction
    from bench.race.results import Measurement


def predict(
    gpu: str = option("h200", "A GPU of data/gpus.toml."),
    model: str = option("llama-2-7b", "A model of data/shapes.toml."),
    format: str | None = option(None, "Weights in this format only."),
    results: Path | None = option(None, "Compare with measurements of `make gpu-check`."),
    goals: bool = option(False, "The goals of `make gpu-check`, with predictions."),
    as_json: o.Json = False,
) -> None:
    """Predict CUDA kernels' share of a GPU's limit.

    From their machine code and the GPU's published figures: memory bandwidth, bytes in flight,
    instructions, waves of blocks, launches. It is a model; nothing is run.
    """
    from bench.cuda.goals import GOALS
    from bench.cuda.predict import ceilings, held_against, of_goals, predictions
    from bench.race.results import read_folder
    from data.gpus import gpus
    from data.shapes import read as shapes
    from engine.shell.terminal import figures, stdout
    from kernels.cuda.runtime import sass

    for asked, name, known in (("gpu", gpu, gpus()), ("model", model, shapes().models)):
        if name not in known:
            raise typer.BadParameter(f"--{asked} is one of {', '.join(known)}; got {name!r}")
    if reason := sass.missing():
        raise RuntimeError(reason)
    if goals:
        rows, limits = of_goals(gpus()[gpu]), ceilings(gpus()[gpu])
        for goal in GOALS:
            print(goal.line([], limits, goal.figure(rows, limits)))
        return
    found = list(predictions(gpus()[gpu], shapes().models[model], format))
    if not found:
        raise typer.BadParameter(f"no kernel of these has the format {format!r}")
    runs = read_folder(results)[0] if results else []
    measured = [row for run in runs for row in run.measurements]
    pairs = [there for _, there in held_against([one.row for one in found], measured)]
    if as_json:
        print(json.dumps([to_json(*pair) for pair in zip(found, pairs, strict=True)]))
        return
    names = figures("us", "share", "at once", "waves", "KB on way", "needed", "measured")
    shown = grid("kernel", "sizes", *names, "longest")
    for one, there in zip(found, pairs, strict=True):
        longest, row = one.longest, one.row
        share = f"{'' if longest.whole else '< '}{row.share:.0%}"
        shown.add_row(
            f"{row.test} {row.variant} {row.format}", row.shape or f"{one.launches} launches",
            f"{1e6 * row.median:,.1f}", share, str(longest.at_once),
            f"{longest.waves:.2f}", _kilobytes(longest.flight), _kilobytes(longest.needed),
            f"{there.share:.0%}" if there else "", longest.limit,
        )  # fmt: skip
    console = stdout()
    console.print(f"{gpus()[gpu].name}, {model}: predicted, not measured", highlight=False)
    console.print(shown)
    console.print("<: how long it waits for memory is not in it, only what it has to move and do")


def _kilobytes(size: float) -> str:
    return f"{size / 1e3:.0f}" if size else ""


def to_json(one: "Prediction", there: "Measurement | None") -> dict[str, Any]:
    """Sizes in bytes, times in seconds; of the launch that takes longest what limits it."""
    row, longest = one.row, one.longest
    return {
        "test": row.test, "variant": row.variant, "format": row.format, "shape": row.shape,
        "model": row.model, "launches": one.launches, "seconds": row.median, "share": row.share,
        "limit": row.limit, "limit_seconds": row.limit_seconds, "longest": longest.launch,
        "bound": longest.limit, "registers": longest.registers, "blocks_at_once": longest.at_once,
        "waves": longest.waves, "bytes_in_flight": longest.flight,
        "bytes_needed": longest.needed, "measured_seconds": there.median if there else None,
        "measured_share": there.share if there else None,
    }  # fmt: skip
