"""assay fleet perplexity, imatrix and embed: chunks of a text, or texts, dealt out."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from bench.shell.fleet.distribution import OF_BITS, OF_PROMPTS, batched, dealt, model_of, named
from engine.shell.command_line import options as o
from engine.shell.command_line.groups import option

TEXTS = 8  # of a share


def perplexity(
    asked: typer.Context,
    model: o.ModelName,
    file: o.TextFile,
    *,
    context: o.Chunk = 0,
    chunks: o.Chunks = None,
    base: Path | None = option(
        None, "Compare with another run's log-probabilities.", metavar="FILE"
    ),
    loading: Annotated[o.Loading, OF_BITS],
    as_json: o.Json = False,
) -> None:
    """Measure a model's perplexity on a text whose chunks are distributed.

    The output is that of `assay perplexity`, to the last digit, however many workers there are and
    whichever die. A base's file must be readable by workers, or is sent.
    """
    from bench.fleet.shares import Perplexity
    from engine.perplexity import LogitsFile, Tally
    from engine.shell.perplexity import MOST_OUTPUTS, as_dict, read_text, show

    begun, tally = time.monotonic(), Tally()
    with ExitStack() as stack:
        kept = stack.enter_context(LogitsFile(base)) if base else None
        text, vocab = read_text(model, file, context, chunks, kept)
        if kept:
            kept.check(text, vocab)
    loading = replace(loading, context=text.context)
    held = model_of(model, loading, outputs=min(text.scored, MOST_OUTPUTS))
    job = Perplexity(held, named(base) if base else None)
    shares = ([chunk] for chunk in enumerate(text.passages()))
    for (scores,) in dealt(asked, job, shares, "chunks", len(text.chunks)):
        tally.add(scores)
    if as_json:
        print(json.dumps(as_dict(tally, text, time.monotonic() - begun, ())))
    else:
        show(tally.perplexity(), tally.comparison(), text)


def imatrix(
    asked: typer.Context,
    model: o.ModelName,
    file: o.TextFile,
    *,
    out: Path = option(Path("imatrix.gguf"), "Output file.", "-o"),
    context: o.Chunk = 0,
    chunks: o.Chunks = None,
    as_json: o.Json = False,
    loading: Annotated[o.Loading, OF_BITS],
) -> None:
    """Make an importance matrix from a text whose chunks are distributed.

    The file is that of `assay imatrix`, byte for byte: chunks are summed in order.
    """
    from bench.fleet.shares import Imatrix
    from engine.atomic_write import check
    from engine.embedded import resolve
    from engine.passes.observe import Observed, joined
    from engine.shell.imatrix import keep
    from engine.shell.perplexity import read_text

    text, _ = read_text(model, file, context, chunks, None)
    check(out, None if str(file) == "-" else file)
    check(out, resolve(model))
    held = model_of(model, replace(loading, context=text.context), observing=True)
    shares = ([chunk] for chunk in enumerate(text.passages()))
    sums: dict[str, Observed] = {}
    for (met,) in dealt(asked, Imatrix(held), shares, "chunks", len(text.chunks)):
        sums = joined(sums, met)
    keep(sums, text, out, file, as_json)


def embed(
    asked: typer.Context,
    model: o.ModelName,
    text: Annotated[str | None, typer.Argument(help="Standard input by default.")] = None,
    *,
    file: Path | None = option(None, "Read texts from this file; - is standard input.", "-f"),
    pooling: str = option("mean", "As in assay embed.", metavar="KIND"),
    normalize: bool = option(True, "Normalise vectors to length 1."),
    loading: Annotated[o.Loading, OF_PROMPTS],
    as_json: o.Json = False,
) -> None:
    """Print texts as vectors, in their order, as `assay embed` does."""
    from bench.fleet.shares import Embed
    from engine.shell.embed import MOST_OUTPUTS, show, texts_asked

    begun, texts = time.monotonic(), texts_asked(text, file, pooling)
    job = Embed(model_of(model, loading, outputs=MOST_OUTPUTS), pooling, normalize)
    tokens: list[int] = []

    def vectors() -> Iterator[Any]:
        for found in dealt(asked, job, batched(texts, TEXTS), "texts", len(texts)):
            for count, vector in found:
                tokens.append(count)
                yield vector

    show(vectors(), pooling, as_json, lambda: (tokens, time.monotonic() - begun))
