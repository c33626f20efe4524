"""assay sparsify: make a sparse model with predictors from a ReLU model and a text."""

import json
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engine.shell.command_line import options as o
from engine.shell.command_line.groups import option

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from engine.sparsify.sparsify import BlockMade, Watchers

ROUNDING = 0.002  # the most by which F16 predictors may change the recall


def sparsify(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A dense GGUF file.")],
    text: Annotated[Path, typer.Argument(metavar="TEXT", help="In UTF-8; - reads stdin.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Such as NAME.powerinfer.gguf.")],
    recall: float = option(0.95, "Share of the active neurons that predictors must find."),
    rank: int = option(0, "Rank of all predictors; 0: the smallest sufficient one of 32, 64, ..."),
    steps: int = option(1500, "Training steps for each rank tried."),
    statistics: Path | None = option(
        None,
        "Keep how often each neuron was active: a folder of PowerInfer's activation_{i}.pt, or a"
        " .npz.",
        metavar="PATH",
    ),
    context: int = option(0, "Tokens of a chunk; 0: 512, or the model's own.", "-c"),
    chunks: int | None = option(None, "Maximum number of chunks; all by default."),
    seed: int = option(0, "Seed of the training."),
    threads: o.Threads = 0,
    as_json: o.Json = False,
) -> None:
    """Make a sparse model in PowerInfer's format.

    MODEL is a LLaMA whose feed-forward networks are relu(gate) * up. No GGUF file tells which
    activation its model was trained with; from one with SiLU, as most have, OUT would be another,
    worse model. So the perplexity of MODEL with either is measured on a part of TEXT, and a note
    says so if SiLU fits better.

    The model reads TEXT in chunks. For each block a predictor learns which neurons are active;
    every tenth chunk is held out to choose the rank, set the threshold and measure recall and
    precision. OUT appears when it is complete.
    """
    from engine.atomic_write import check as check_out
    from engine.embedded import resolve
    from engine.gguf.file import GGUFFile
    from engine.shell.perplexity import read_text
    from engine.shell.terminal import note
    from engine.sparsify import SparsifyError, check

    if not 0 < recall <= 1:
        raise typer.BadParameter(f"--recall {recall}: want more than 0 and at most 1")
    if rank < 0 or steps < 1 or seed < 0:
        raise typer.BadParameter("--rank and --seed are at least 0, --steps is at least 1")
    try:
        from engine.sparsify.sparsify import sparsify as make
        from engine.sparsify.train import Training
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise SparsifyError("predictors are trained with PyTorch: pip install torch") from None
    path = resolve(model)
    with GGUFFile(path) as file:
        check(file)
    for read in (path, text):
        check_out(out, None if str(read) == "-" else read)
    passages = [p.tokens for p in read_text(model, text, context, chunks, None)[0].passages()]
    training = Training(recall=recall, rank=rank, steps=steps, seed=seed)
    with _watched(len(passages), steps, out.name) as watchers:
        made = make(
            path, passages, out, training, keep_statistics=statistics, threads=threads,
            watchers=watchers,
        )  # fmt: skip
    if made.perplexities.silu < made.perplexities.relu:
        note(
            f"{model} was hardly trained with ReLU: the perplexity on text held out is"
            f" {made.perplexities.relu:.4f} with it and {made.perplexities.silu:.4f} with SiLU"
        )
    if as_json:
        rows = [_row(i, block) for i, block in enumerate(made.blocks)]
        found = {"out": str(out), "blocks": rows, "perplexities": asdict(made.perplexities)}
        print(json.dumps(found))
    else:
        _show(made.blocks, recall)
        print(f"{out}: {out.stat().st_size:,} bytes")


@contextmanager
def _watched(passages: int, steps: int, name: str) -> "Iterator[Watchers]":
    """A progress bar for each phase."""
    from engine.shell.terminal import progress_bar
    from engine.sparsify.sparsify import Watchers

    with progress_bar() as bar:
        task = bar.add_task("")

        def tell(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        yield Watchers(
            lambda trials: tell(f"trying {', '.join(trials.trying)}", trials.done, trials.total),
            lambda done, total: tell("reading chunks", done, total),
            lambda block, rank, step: tell(f"training block {block}, rank {rank}", step, steps),
            lambda done, total: tell(f"writing {name} (MB)", done // 2**20, total // 2**20),
        )


def _row(i: int, made: "BlockMade") -> dict[str, int | float]:
    return {
        "block": i,
        "active_share": made.active_share,
        "rank": made.rank,
        "recall": made.judged.recall,
        "precision": made.judged.precision,
        "predicted_share": made.judged.predicted_share,
        "held_out_active_share": made.judged.active_share,
    }


def _show(made: "Sequence[BlockMade]", recall: float) -> None:
    """Print a line for each block, and totals."""
    from statistics import fmean

    from engine.shell.terminal import figures, note, print_table, stdout

    print_table(
        ("block", *figures("active", "rank", "recall", "precision", "predicted")),
        (
            (i, f"{m.active_share:.1%}", m.rank, f"{m.judged.recall:.1%}",
             f"{m.judged.precision:.1%}", f"{m.judged.predicted_share:.1%}")
            for i, m in enumerate(made)
        ),
    )  # fmt: skip
    active = fmean(m.active_share for m in made)
    predicted = fmean(m.judged.predicted_share for m in made)
    stdout().print(
        f"{active:.1%} of the neurons are active, {predicted:.1%} are predicted to be",
        highlight=False,
    )
    short = [str(i) for i, m in enumerate(made) if m.judged.recall < recall - ROUNDING]
    if short:
        which = f"block{'s' if len(short) > 1 else ''} {', '.join(short)}"
        note(
            f"{which}: a recall of {recall:.1%} was not reached; more text, more --steps or a"
            " higher --rank may"
        )
