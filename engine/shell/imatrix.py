"""assay imatrix: compute an importance matrix from a text."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from engine.shell.command_line import options as o
from engine.shell.command_line.groups import Only, option

if TYPE_CHECKING:
    from engine.passes.observe import Observed
    from engine.perplexity import Text


def imatrix(
    model: o.ModelName,
    file: o.TextFile,
    *,
    out: Path = option(Path("imatrix.gguf"), "Output file.", "-o"),
    context: o.Chunk = 0,
    chunks: o.Chunks = None,
    as_json: o.Json = False,
    loading: Annotated[o.Loading, Only("threads", "batch", "kv_format", "variant", "strict")],
) -> None:
    """Make an importance matrix for `assay quantize --imatrix`, in llama.cpp's file format.

    The model reads the text in chunks, and each matrix's inputs are squared and summed by column,
    in mixtures for each expert separately. The output matrix is left out, as in llama.cpp.
    """
    from engine.atomic_write import check
    from engine.embedded import resolve
    from engine.passes.observe import Observed, joined, met, observe
    from engine.shell.perplexity import read_text
    from engine.shell.show import loaded
    from engine.shell.terminal import progress_bar

    text, _ = read_text(model, file, context, chunks, None)
    check(out, None if str(file) == "-" else file)
    check(out, resolve(model))
    loading = replace(loading, context=text.context)
    with (
        loaded(model, loading, sequences=1, outputs=1, passes=(observe,)) as engine,
        progress_bar() as bar,
    ):
        task = bar.add_task("chunks", total=len(text.chunks))
        sums: dict[str, Observed] = {}
        for passage in text.passages():
            sums = joined(sums, met(engine, passage))
            bar.update(task, advance=1)
    keep(sums, text, out, file, as_json)


def keep(sums: "dict[str, Observed]", text: "Text", out: Path, file: Path, as_json: bool) -> None:
    """Write the statistics of a text, and report it."""
    from engine.quantise.importance import unmet, write
    from engine.shell.terminal import note

    tokens = text.chunks.size
    write(out, sums, tokens, (file.name,), len(text.chunks), text.context)
    if lacking := unmet(sums):
        note(lacking)
    if as_json:
        found = {"file": str(out), "matrices": len(sums), "tokens": int(tokens)}
        print(json.dumps(found | {"chunks": len(text.chunks), "context": text.context}))
        return
    print(f"{out}: {len(sums)} matrices, from {tokens:,} tokens in {len(text.chunks):,} chunks")
