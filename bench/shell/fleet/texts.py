"""assay fleet perplexity, imatrix, embed, batch and score: chunks of a text, texts, or lines of
JSON dealt out."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from bench.shell.fleet.distribution import OF_BITS, OF_PROMPTS, batched, dealt, model_of, named
from engine.shell.command_line import options as o
from engine.shell.command_line.groups import option

TEXTS = 8  # of a share
PAIRS = 16  # of a share
SCORED = {"id", "prompt", "continuation"}


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


def batch(
    asked: typer.Context,
    model: o.ModelName,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Prompts, one line of JSON each; - reads stdin.")
    ],
    *,
    out: Path = option(Path("batch.jsonl"), "Output file, one line of JSON per answer.", "-o"),
    template: str = o.TEMPLATE,
    parallel: int = option(8, "Concurrent prompts per worker.", "-np"),
    as_json: o.Json = False,
    sampling: o.Sampling,
    loading: Annotated[o.Loading, OF_PROMPTS],
) -> None:
    """Answer many prompts; resume where an earlier run ended, as `assay batch` does.

    Each answer is the one that its prompt would have alone; without a seed it varies.
    """
    from bench.fleet.shares import Batch, Perplexity, Prompt
    from engine.chat_templates import template_source
    from engine.perplexity import Passage
    from engine.shell.jsonl import Answers, Questions, answer_of
    from engine.shell.jsonl import opened as file_opened

    if parallel < 1 or sampling.nothing:
        raise typer.BadParameter("--parallel and --predict are whole numbers from 1 up")
    params = sampling.params()
    held = model_of(model, loading, sequences=parallel, sampling=params)
    job = Batch(held, template_source(template) if template else None)
    first = Perplexity(held), [(0, Passage([*range(1, 33)], 16))]
    lines, total = file_opened(file)
    with lines, Answers(out, None if str(file) == "-" else file) as answers:
        before, answered = len(answers.ids), 0
        questions = Questions(lines, params, set(answers.ids))

        def prompts() -> Iterator[Prompt]:
            messages: list[Any] = []  # of the line that is read now
            for request in questions.requests(lambda said: messages.append(said) or []):  # type: ignore[func-returns-value]
                yield Prompt(request.id, request.prompt, request.params, *messages)
                messages.clear()

        shares = batched(prompts(), parallel)
        for found in dealt(asked, job, shares, "prompts", total, first):
            for number, said in found:
                if isinstance(said, str):
                    questions.fails(int(number), ValueError(said))
                else:
                    answers.append(questions.ids.pop(number), answer_of(said))
                    answered += 1
    for number, error in sorted(questions.failed.items()):
        print(f"{file}:{number}: {error}", file=sys.stderr, flush=True)
    if as_json:
        failed = [{"line": n, "error": error} for n, error in sorted(questions.failed.items())]
        result = {"file": str(out), "answered": answered, "before": before, "failed": failed}
        print(json.dumps(result))
    else:
        print(f"{out}: {answered} answers" + (f", and {before} from before" if before else ""))
    if questions.failed:
        raise ValueError(f"{file}: {len(questions.failed)} lines have no answer")


def score(
    asked: typer.Context,
    model: o.ModelName,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="One line of JSON per pair.")],
    *,
    out: Path = option(Path("scores.jsonl"), "Output file, one line of JSON per score.", "-o"),
    loading: Annotated[o.Loading, OF_PROMPTS],
    as_json: o.Json = False,
) -> None:
    """Score continuations of prompts, as `Engine.score` does; resume where an earlier run ended.

    A line of FILE is {"prompt": "...", "continuation": "..."} and may have an "id", else its
    number. A line of OUT has "id", "token_ids", "logprobs" (natural logarithms), their sum
    "logprob" and "is_greedy"; lines come in the order of FILE. Ids that OUT has are left out.
    """
    from bench.fleet.shares import Scoring
    from engine.shell.jsonl import Answers

    pairs = pairs_of(file)
    with Answers(out, file, "logprob") as answers:
        ids = [own for own in pairs if own not in answers.ids]
        shares = batched((pairs[own] for own in ids), PAIRS)
        job, coming = Scoring(model_of(model, loading, outputs=256)), iter(ids)
        for found in dealt(asked, job, shares, "pairs", len(ids)) if ids else ():
            for one in found:
                told = asdict(one) | {"logprob": one.cumulative_logprob}
                answers.append(json.loads(next(coming)), told)
    before = len(pairs) - len(ids)
    if as_json:
        print(json.dumps({"file": str(out), "scored": len(ids), "before": before}))
    else:
        print(f"{out}: {len(ids)} scores" + (f", and {before} from before" if before else ""))


def pairs_of(file: Path) -> dict[str, tuple[str, str]]:
    """Prompts with their continuations, by their ids as JSON. ValueError names the first wrong
    line."""
    pairs: dict[str, tuple[str, str]] = {}
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            said = json.loads(line)
            if not isinstance(said, dict) or said.keys() - SCORED:
                raise ValueError(f"a line is an object with {', '.join(sorted(SCORED))}")
            prompt, then, own = (said.get(key) for key in ("prompt", "continuation", "id"))
            if not (isinstance(prompt, str) and isinstance(then, str) and then):
                raise ValueError("prompt and continuation are texts")
            if not isinstance(own, str | int | None) or isinstance(own, bool):
                raise ValueError(f"id is {own!r}: want a text or a whole number")
            if (key := json.dumps(number if own is None else own)) in pairs:
                raise ValueError(f"id {key} was there before")
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{file}:{number}: {error}") from None
        pairs[key] = prompt, then
    if not pairs:
        raise ValueError(f"{file}: there is no pair in it")
    return pairs
