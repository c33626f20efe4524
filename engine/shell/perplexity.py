"""assay perplexity: how well a model foretells a text, and how far it is from a base."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engine.shell import options as o

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.engine import Engine
    from engine.perplexity import Comparison, Estimate, LogitsFile, Perplexity, Tally, Text

USUAL_CONTEXT = 512
MOST_OUTPUTS = 256  # rows of logits in memory at once


def perplexity(
    model: o.ModelName,
    file: o.TextFile,
    context: o.Chunk = 0,
    chunks: o.Chunks = None,
    save_logits: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep log-probabilities, to be a base.")
    ] = None,
    base: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Compare with what another run kept.")
    ] = None,
    threads: o.Threads = 0,
    batch: o.Batch = 512,
    kv: o.KvFormat = "F16",
    numerics: o.Numerics = "exact",
    pinned: o.Pinned = False,
    device: o.Device = "cpu",
    gpu_layers: o.GpuLayers = -1,
    variant: o.Variant = None,
    strict: o.Strict = False,
    keep_packed: o.KeepPacked = False,
    sparse: o.Sparse = "auto",
    sparse_threshold: o.SparseThreshold = None,
    union: o.Union = False,
    ram_budget: o.RamBudget = "",
    as_json: o.Json = False,
) -> None:
    """Measure a model's perplexity on a text, by llama.cpp's method.

    The text is cut into chunks, each read on its own behind BOS, where the model wants it. Tokens
    of a chunk's second half count, so that each is foretold from at least half a chunk.

    --save-logits and --base take the files of llama.cpp's --kl-divergence-base, some 2 bytes for
    each token of the vocabulary and token that counts. Beside a base come the KL divergence from
    it and how often both hold the same token for the likeliest.
    """
    from engine.aside import check
    from engine.perplexity import LogitsFile, Scorer, Tally, writing
    from engine.perplexity.scores import Coded
    from engine.shell.show import loaded, progress_bar

    with ExitStack() as stack:
        kept = stack.enter_context(LogitsFile(base)) if base else None
        text, vocab = read_text(model, file, context, chunks, kept)
        if kept:
            kept.check(text, vocab)
        if save_logits:
            check(save_logits, base)
        engine = stack.enter_context(
            loaded(
                model, threads=threads, context=text.context, batch=batch, sequences=1,
                outputs=min(text.scored, MOST_OUTPUTS), kv_format=kv, numerics=numerics,
                pinned=pinned, device=device, gpu_layers=gpu_layers, variant=variant,
                strict=strict, keep_packed=keep_packed, sparse=sparse, threshold=sparse_threshold,
                union=union, ram_budget=ram_budget,
            )
        )  # fmt: skip
        scorer, tally = Scorer(engine), Tally()
        writer = stack.enter_context(writing(save_logits, text, vocab)) if save_logits else None
        coded = kept.coded() if kept else None
        bar = stack.enter_context(progress_bar())
        task = bar.add_task("perplexity", total=len(text.chunks))
        for passage in text.passages():
            fresh = Coded.empty(text.scored, vocab) if writer else None
            tally.add(scorer.read(passage, next(coded) if coded else None, fresh))
            if writer and fresh:
                writer.add(fresh)
            bar.update(task, advance=1, description=f"perplexity {tally.running[-1]:.4f}")
    if as_json:
        print(json.dumps(as_dict(tally, text, engine)))
    else:
        show(tally.perplexity(), tally.comparison(), text)


def read_text(
    model: str, file: Path, context: int, chunks: int | None, base: "LogitsFile | None"
) -> "tuple[Text, int]":
    """The text in chunks, and the model's vocabulary, before any weight is touched."""
    from engine.config import ModelConfig
    from engine.embedded import resolve
    from engine.gguf_file import GGUFFile
    from engine.perplexity import PerplexityError, cut
    from engine.shell.run import prompt_text
    from engine.tokenizer import Tokenizer

    words = prompt_text(None, None if str(file) == "-" else file).removesuffix("\n")
    if not words:
        raise PerplexityError(f"{file}: the text is empty")
    with GGUFFile(resolve(model)) as opened:
        tokenizer = Tokenizer.from_metadata(opened.metadata)
        embedding = opened.tensors.get("token_embd.weight")
        vocab = embedding.dims[0] if embedding else tokenizer.vocab_size
        own = ModelConfig.from_metadata(opened.metadata, vocab).context
    if not context:
        context = base.context if base else min(USUAL_CONTEXT, own)
    most = base.count if base and chunks is None else chunks
    try:
        tokens = tokenizer.encode(words)
        return cut(tokens, context, tokenizer.bos_of_texts, most), vocab
    except PerplexityError as error:
        raise PerplexityError(f"{file}: {error}") from None


def as_dict(tally: "Tally", text: "Text", engine: "Engine") -> dict[str, object]:
    from dataclasses import asdict

    comparison = tally.comparison()
    return {
        **asdict(tally.perplexity()),
        "context": text.context,
        "chunks": len(text.chunks),
        "running": tally.running,
        "comparison": asdict(comparison) if comparison else None,
        "seconds": engine.timings.prompt.seconds,
        "notes": engine.model.notes,
    }


def show(found: "Perplexity", comparison: "Comparison | None", text: "Text") -> None:
    """What llama.cpp prints at the end."""
    from rich.table import Column, Table

    from engine.shell.show import stdout

    console = stdout()
    each = f"{len(text.chunks):,} chunks of {text.context:,}"
    value, error = found.perplexity.value, found.perplexity.error
    console.print(
        f"perplexity {value:.4f} ± {error:.4f} over {found.tokens:,} tokens in {each}",
        highlight=False,
    )
    if comparison is None:
        return
    c = comparison
    table = Table("beside the base", Column("value", justify="right"), Column("±", justify="right"))

    def add(name: str, estimate: "Estimate", scale: float = 1.0, unit: str = "") -> None:
        figures = (f"{scale * x:.6f}{unit}" for x in (estimate.value, estimate.error))
        table.add_row(name, *figures)

    add("perplexity of the base", c.base.perplexity)
    add("ln(perplexity / base)", c.log_ratio)
    add("perplexity / base", c.ratio)
    add("perplexity - base", c.difference)
    table.add_row("correlation of -ln p", f"{100 * c.correlation:.2f}%", "")
    add("mean KL divergence (nats)", c.divergence)
    add("mean Δp", c.delta_p, 100, "%")
    add("root mean square Δp", c.delta_p_rms, 100, "%")
    add("same likeliest token", c.same_top, 100, "%")
    console.print(table)
    rows: Sequence[str] = [*c.delta_p_percentiles]
    table = Table("percentile", *(Column(n, justify="right") for n in ("KL divergence", "Δp")))
    for name in rows:
        divergence = c.divergence_percentiles.get(name)
        table.add_row(
            name,
            "" if divergence is None else f"{divergence:.6f}",
            f"{100 * c.delta_p_percentiles[name]:.3f}%",
        )
    console.print(table)
