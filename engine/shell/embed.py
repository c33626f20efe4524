"""assay embed: texts as vectors."""

import json
from pathlib import Path
from typing import Annotated

import typer

from engine.shell import options as o
from engine.shell.groups import Without, option

MOST_OUTPUTS = 256  # tokens of a step whose vectors are wanted


def embed(
    model: o.ModelName,
    text: Annotated[str | None, typer.Argument(help="Standard input if absent.")] = None,
    *,
    file: Path | None = option(None, "Read them here; - is standard input.", "-f"),
    pooling: str = option(
        "mean",
        "Of a text's tokens: their mean, the last, the first (cls), or none: all of them.",
        metavar="KIND",
    ),
    normalize: bool = option(True, "Vectors have length 1."),
    loading: Annotated[o.Loading, Without("kv_policy")],
    as_json: o.Json = False,
) -> None:
    """Print texts as vectors, a text on each line, of the last norm's results.

    An empty line is no text. Every vector is a line; with --pooling none a text has as many as
    tokens.
    """
    from engine.checks import PromptError
    from engine.generation.embedding import POOLING, embeddings, texts_of
    from engine.shell.command import spelt
    from engine.shell.prompts import prompt_text
    from engine.shell.show import loaded

    if pooling not in POOLING:
        raise typer.BadParameter(spelt(f"pooling is {pooling!r}: want {', '.join(POOLING)}"))
    texts = [line for line in prompt_text(text, file).splitlines() if line.strip()]
    if not texts:
        raise PromptError(f"{file or 'standard input'}: there is no text")
    with loaded(model, loading, sequences=1, outputs=MOST_OUTPUTS) as engine:
        tokens = texts_of(engine, texts)
        found = []
        for vectors in embeddings(engine, tokens, pooling, normalize):
            found.append(vectors.tolist())
            if not as_json:
                for vector in found.pop() if pooling == "none" else [found.pop()]:
                    print(*vector)
        if as_json:
            result = {
                "embeddings": found,
                "tokens": list(map(len, tokens)),
                "pooling": pooling,
                "seconds": engine.timings.prompt.seconds,
            }
            print(json.dumps(result))
