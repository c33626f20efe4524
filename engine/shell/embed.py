"""assay embed: embed texts."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engine.shell.command_line import options as o
from engine.shell.command_line.groups import Without, option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from reference.op import Array

MOST_OUTPUTS = 256  # tokens of a step whose vectors are wanted


def embed(
    model: o.ModelName,
    text: Annotated[str | None, typer.Argument(help="Standard input by default.")] = None,
    *,
    file: Path | None = option(None, "Read texts from this file; - is standard input.", "-f"),
    pooling: str = option(
        "mean",
        "Of a text's tokens: their mean, the last, the first (cls), or none: all of them.",
        metavar="KIND",
    ),
    normalize: bool = option(True, "Normalise vectors to length 1."),
    loading: Annotated[o.Loading, Without("kv_policy", "prompt_attention")],
    as_json: o.Json = False,
) -> None:
    """Print texts as vectors, one text per line, from the final norm's output.

    Empty lines are skipped. Each vector is a line; with --pooling none a text has one for each
    token.
    """
    from engine.generation.embedding import embeddings, encode_texts
    from engine.shell.show import loaded

    texts = texts_asked(text, file, pooling)
    with loaded(model, loading, sequences=1, outputs=MOST_OUTPUTS) as engine:
        tokens = encode_texts(engine, texts)
        found = embeddings(engine, tokens, pooling, normalize)
        show(
            found, pooling, as_json,
            lambda: ([*map(len, tokens)], engine.timings.prompt.seconds),
        )  # fmt: skip


def texts_asked(text: str | None, file: Path | None, pooling: str) -> list[str]:
    """The lines that are texts; a usage error for an unknown pooling."""
    from engine.checks import PromptError
    from engine.generation.embedding import POOLING
    from engine.shell.command_line.command import spelt
    from engine.shell.prompts import prompt_text

    if pooling not in POOLING:
        raise typer.BadParameter(spelt(f"pooling is {pooling!r}: want {', '.join(POOLING)}"))
    texts = [line for line in prompt_text(text, file).splitlines() if line.strip()]
    if not texts:
        raise PromptError(f"{file or 'standard input'}: there is no text")
    return texts


def show(
    vectors: "Iterable[Array]",
    pooling: str,
    as_json: bool,
    counted: "Callable[[], tuple[list[int], float]]",
) -> None:
    """Print each vector as it comes; for programs all at the end, with the tokens `counted` in each
    text, and seconds."""
    found = []
    for one in vectors:
        found.append(one.tolist())
        if not as_json:
            for vector in found.pop() if pooling == "none" else [found.pop()]:
                print(*vector)
    if as_json:
        tokens, seconds = counted()
        result = {"embeddings": found, "tokens": tokens, "pooling": pooling, "seconds": seconds}
        print(json.dumps(result))
