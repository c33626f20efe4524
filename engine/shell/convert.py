"""assay convert: convert a Hugging Face model's folder to a GGUF file."""

import json
from pathlib import Path
from typing import Annotated

import typer

from engine.shell.command_line import options as o
from engine.shell.command_line.groups import option


def _print_supported(wanted: bool) -> None:
    if wanted:
        from engine.convert import FAMILIES
        from engine.shell.terminal import print_table

        print_table(
            ("architecture in config.json", "models", "in GGUF"),
            ((", ".join(family.architectures), family.about, family.gguf) for family in FAMILIES),
        )
        raise typer.Exit


def convert(
    folder: Annotated[
        Path, typer.Argument(metavar="HF_DIR", help="config.json, *.safetensors, tokenizer files.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The GGUF file to write.")],
    outtype: str = option("f16", "Format of the matrices: f32, f16, bf16 or q8_0."),
    predictors: Path | None = option(
        None, "Predictors, model_{i}.pt: a sparse model, as PowerInfer's.", metavar="DIR"
    ),
    name: str = option("", "The model's name; the folder's if absent."),
    supported: Annotated[
        bool,
        typer.Option(
            "--print-supported-models",
            callback=_print_supported,
            is_eager=True,
            help="Print the supported architectures and exit.",
        ),
    ] = False,
    threads: o.Threads = 0,
    as_json: o.Json = False,
) -> None:
    """Write a Hugging Face model as a GGUF file, for this engine and llama.cpp alike."""
    from engine.convert import OUTTYPES
    from engine.convert import convert as write
    from engine.shell.show import loading
    from engine.shell.terminal import note, stdout

    if outtype.upper() not in OUTTYPES:
        raise typer.BadParameter(
            f"{outtype!r} is none of {', '.join(OUTTYPES).lower()}", param_hint="--outtype"
        )
    with loading(f"converting {folder.resolve().name} (MB)") as watcher:
        done = write(
            folder, out, outtype.upper(), name,
            predictors=predictors, threads=threads,
            progress=watcher.packed, certified=watcher.certified,
        )  # fmt: skip
    if as_json:
        written = {"file": str(out), "tensors": len(done.tensors), "bytes": done.n_bytes}
        print(json.dumps(written | {"notes": done.notes}))
        return
    for line in done.notes:
        note(line)
    stdout().print(
        f"{out}: {len(done.tensors)} tensors, {done.n_bytes / 1e6:,.1f} MB",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip
