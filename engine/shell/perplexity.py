"""assay perplexity: how well a model predicts a text, and how far it is from a base."""

import json
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from engine.shell.command_line import options as o
from engine.shell.command_line.groups import Without, option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.perplexity import Comparison, Estimate, LogitsFile, Perplexity, Tally, Text

USUAL_CONTEXT = 512
MOST_OUTPUTS = 256  # rows of logits in memory at once
# the context is that of the chunks, which are read whole
READING = Without("context", "kv_policy", "prompt_attention")


def perplexity(
    model: o.ModelName,
    file: o.TextFile,
    *,
    context: o.Chunk = 0,
    chunks: o.Chunks = None,
    save_logits: Path | None = option(
        None, "Store log-probabilities for later comparisons.", metavar="FILE"
    ),
    base: Path | None = option(
        None, "Compare with another run's log-probabilities.", metavar="FILE"
    ),
    loading: Annotated[o.Loading, READING],
    as_json: o.Json = False,
) -> None:
    """Measure a model's perplexity on a text, by llama.cpp's method.

    The text is cut into chunks, each read on its own after BOS, where the model wants it. Tokens of
    a chunk's second half are scored, so that each is predicted from at least half a chunk.
    --save-logits and --base use the files of llama.cpp's --kl-divergence-base, some 2 bytes per
    vocabulary entry and scored token. With a base the KL divergence from it is reported, and how
    often both have the same most likely token.
    """
    from engine.atomic_write import check
    from engine.perplexity import LogitsFile, Scorer, Tally, writing
    from engine.perplexity.scores import Coded
    from engine.shell.show import loaded
    from engine.shell.terminal import progress_bar

    with ExitStack() as stack:
        kept = stack.enter_context(LogitsFile(base)) if base else None
        text, vocab = read_text(model, file, context, chunks, kept)
        if kept:
            kept.check(text, vocab)
        if save_logits:
            check(save_logits, base)
        loading = replace(loading, context=text.context)
        outputs = min(text.scored, MOST_OUTPUTS)
        engine = stack.enter_context(loaded(model, loading, sequences=1, outputs=outputs))
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
        seconds = engine.timings.prompt.seconds
        print(json.dumps(as_dict(tally, text, seconds, engine.model.notes)))
    else:
        show(tally.perplexity(), tally.comparison(), text)


def read_text(
    model: str, file: Path, context: int, chunks: int | None, base: "LogitsFile | None"
) -> "tuple[Text, int]":
    """The text in chunks, and the model's vocabulary, before any weight is read."""
    from engine.embedded import resolve
    from engine.gguf.file import GGUFFile
    from engine.metadata.config import config_of
    from engine.perplexity import PerplexityError, cut
    from engine.shell.prompts import read_text as text_of
    from engine.tokenizer import Tokenizer

    words = text_of(file)
    if not words:
        raise PerplexityError(f"{file}: the text is empty")
    with GGUFFile(resolve(model)) as opened:
        tokenizer = Tokenizer.from_metadata(opened.metadata)
        embedding = opened.tensors.get("token_embd.weight")
        vocab = embedding.dims[0] if embedding else tokenizer.vocab_size
        own = config_of(opened.metadata, vocab).context
    if not context:
        context = base.context if base else min(USUAL_CONTEXT, own)
    most = base.count if base and chunks is None else chunks
    try:
        tokens = tokenizer.encode(words)
        return cut(tokens, context, tokenizer.added_bos, most), vocab
    except PerplexityError as error:
        raise PerplexityError(f"{file}: {error}") from None


def as_dict(
    tally: "Tally", text: "Text", seconds: float, notes: "Sequence[str]"
) -> dict[str, object]:
    comparison = tally.comparison()
    return {
        **asdict(tally.perplexity()),
        "context": text.context,
        "chunks": len(text.chunks),
        "running": tally.running,
        "comparison": asdict(comparison) if comparison else None,
        "seconds": seconds,
        "notes": [*notes],
    }


def show(found: "Perplexity", comparison: "Comparison | None", text: "Text") -> None:
    """Print the same results as llama.cpp."""
    from engine.shell.terminal import figures, print_table, stdout

    each = f"{len(text.chunks):,} chunks of {text.context:,}"
    value, error = found.perplexity.value, found.perplexity.error
    stdout().print(
        f"perplexity {value:.4f} ± {error:.4f} over {found.tokens:,} tokens in {each}",
        highlight=False,
    )
    if comparison is None:
        return
    c = comparison

    def row(name: str, estimate: "Estimate", scale: float = 1.0, unit: str = "") -> list[str]:
        return [name, *(f"{scale * x:.6f}{unit}" for x in (estimate.value, estimate.error))]

    print_table(
        ("beside the base", *figures("value", "±")),
        (
            row("perplexity of the base", c.base.perplexity),
            row("ln(perplexity / base)", c.log_ratio),
            row("perplexity / base", c.ratio),
            row("perplexity - base", c.difference),
            ("correlation of -ln p", f"{100 * c.correlation:.2f}%", ""),
            row("mean KL divergence (nats)", c.divergence),
            row("mean Δp", c.delta_p, 100, "%"),
            row("root mean square Δp", c.delta_p_rms, 100, "%"),
            row("same likeliest token", c.same_top, 100, "%"),
        ),
    )
    known = {name: f"{value:.6f}" for name, value in c.divergence_percentiles.items()}
    print_table(
        ("percentile", *figures("KL divergence", "Δp")),
        (
            (name, known.get(name), f"{100 * delta:.3f}%")
            for name, delta in c.delta_p_percentiles.items()
        ),
    )
