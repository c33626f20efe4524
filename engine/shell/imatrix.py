"""assay imatrix: how much each column of a model's weights matters, from a text."""

from pathlib import Path
from typing import Annotated

import typer

from engine.shell import options as o


def imatrix(
    model: o.ModelName,
    file: o.TextFile,
    out: Annotated[Path, typer.Option("-o", "--out", help="Where the matrix goes.")] = Path(
        "imatrix.gguf"
    ),
    context: o.Chunk = 0,
    chunks: o.Chunks = None,
    threads: o.Threads = 0,
    batch: o.Batch = 512,
    kv: o.KvFormat = "F16",
    variant: o.Variant = None,
    strict: o.Strict = False,
) -> None:
    """Make an importance matrix for `assay quantize --imatrix`, in llama.cpp's file format.

    The model reads the text in chunks, and what each matrix meets is squared and added up by
    column. The output's matrix is left out, as llama.cpp does.
    """
    from engine.aside import check
    from engine.embedded import resolve
    from engine.quantise.importance import write
    from engine.shell.perplexity import read_text
    from engine.shell.show import loaded, progress_bar

    text, _ = read_text(model, file, context, chunks, None)
    check(out, None if str(file) == "-" else file)
    check(out, resolve(model))
    with (
        loaded(
            model, threads=threads, context=text.context, batch=batch, sequences=1, outputs=1,
            kv_format=kv, variant=variant, strict=strict, observe=True,
        ) as engine,
        progress_bar() as bar,
    ):  # fmt: skip
        task = bar.add_task("chunks", total=len(text.chunks))
        for passage in text.passages():
            engine.reset()
            engine.model.evaluate(passage.tokens, 0)
            bar.update(task, advance=1)
        sums = engine.model.observed.by_weight()
    tokens = text.chunks.size
    write(out, sums, tokens, (file.name,), len(text.chunks), text.context)
    print(f"{out}: {len(sums)} matrices, from {tokens:,} tokens in {len(text.chunks):,} chunks")
