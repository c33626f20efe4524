"""assay tokenize: print a text's tokens."""

import json
import sys
from typing import Annotated

import typer

from engine.shell.command_line import options as o
from engine.shell.command_line.groups import option


def tokenize(
    model: o.ModelName,
    text: Annotated[str | None, typer.Argument(help="Standard input by default.")] = None,
    bos: bool = option(False, "Add BOS and EOS as the model requires."),
    special: bool = option(False, "Parse special tokens in the text."),
    as_json: o.Json = False,
) -> None:
    """Print a text's token ids and pieces; works on vocabulary-only files too."""
    from engine.embedded import resolve
    from engine.gguf.file import GGUFFile
    from engine.shell.prompts import prompt_text
    from engine.tokenizer import Tokenizer

    source = prompt_text(text, None)
    with GGUFFile(resolve(model)) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
    ids = tokenizer.encode(source, add_special=bos, parse_special=special)
    pieces = [tokenizer.piece(token) for token in ids]
    if as_json:
        print(json.dumps({"ids": ids, "pieces": pieces}))
    else:
        for token, piece in zip(ids, pieces, strict=True):
            sys.stdout.write(f"{token:7d}  {piece!r}\n")
