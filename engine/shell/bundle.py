"""assay bundle: store each neuron of a sparse model contiguously."""

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engine.shell.command_line import options as o
from engine.shell.command_line.groups import option

if TYPE_CHECKING:
    from engine.offload.bundle import Bundle


def bundle(
    model: Annotated[
        str, typer.Argument(metavar="IN", help="A sparse GGUF file, or e.g. story-relu.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write.")],
    undo: bool = option(False, "Restore the tensors of a file with bundles."),
    as_json: o.Json = False,
) -> None:
    """Store the rows of each neuron of a sparse model side by side, to be read from disk at once.

    In blocks with a predictor a neuron's rows of gate, up and the transposed down are adjacent,
    unchanged, at a multiple of 512 bytes. OUT is a GGUF file for this engine alone: --undo restores
    the tensors, bit for bit. IN is only read; OUT appears when it is complete.
    """
    from engine.embedded import resolve
    from engine.gguf.file import GGUFFile
    from engine.offload.bundle import bundles
    from engine.offload.bundling import bundle, unbundle
    from engine.shell.terminal import bytes_bar

    with GGUFFile(resolve(model)) as file, bytes_bar(out.name) as progress:
        (unbundle if undo else bundle)(file, out, progress)
    with GGUFFile(out) as written:
        found = list(bundles(written).values())
        if as_json:
            described = {
                "file": str(out),
                "bytes": written.size,
                "tensors": len(written.tensors),
                "bundles": [asdict(bundle) for bundle in found],
            }
            print(json.dumps(described))
        else:
            if found:
                _show(found)
            print(f"{out}: {written.size:,} bytes, {len(written.tensors)} tensors")


def _show(found: "list[Bundle]") -> None:
    """Print a line for each kind of bundle, and the padding's cost."""
    from engine.shell.terminal import figures, print_table

    kinds = Counter(
        (
            " ".join(f"{part}:{row.format}" for part, row in bundle.parts.items()),
            bundle.neurons,
            sum(row.n_bytes for row in bundle.parts.values()),
            bundle.stride,
        )
        for bundle in found
    )
    print_table(
        ("bundle", *figures("blocks", "neurons", "bytes of a neuron", "stride")),
        ((formats, count, *sizes) for (formats, *sizes), count in kinds.items()),
    )
