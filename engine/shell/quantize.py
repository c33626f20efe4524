"""assay quantize: a model in another weight format."""

import json
import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engine.shell import options as o

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.quantise import Choice

TensorTypes = Annotated[
    list[str] | None,
    typer.Option(
        "--tensor-type",
        metavar="REGEX=FORMAT",
        help="Tensors whose name matches get this format; the first that matches. May repeat.",
    ),
]


def quantize(
    model: Annotated[str, typer.Argument(metavar="IN", help="A GGUF file, or e.g. story.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write.")],
    type_: Annotated[
        str, typer.Argument(metavar="TYPE", help="A format or mix, such as Q8_0 or Q4_K_M.")
    ],
    imatrix: Annotated[
        Path | None, typer.Option(help="Importance matrix, of `assay imatrix` or llama.cpp.")
    ] = None,
    pure: Annotated[
        bool, typer.Option("--pure", help="All matrices in the same format, no mix.")
    ] = False,
    tensor_types: TensorTypes = None,
    output_type: Annotated[
        str | None, typer.Option("--output-type", help="Format of the output matrix.")
    ] = None,
    embedding_type: Annotated[
        str | None, typer.Option("--embedding-type", help="Format of the token embedding.")
    ] = None,
    requantise: Annotated[
        bool,
        typer.Option("--allow-requantize", help="Take quantised tensors too; errors add up."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, write nothing.")
    ] = False,
    threads: o.Threads = 0,
    as_json: o.Json = False,
) -> None:
    """Quantise a model.

    \b
    Formats: F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q6_K IQ4_NL IQ4_XS TQ1_0 TQ2_0
             MXFP4
    Mixes:   Q2_K Q2_K_S Q3_K_S Q3_K_M Q3_K_L Q4_K_S Q4_K_M Q5_K_S Q5_K_M

    A mix gives layers that matter more a better format, as llama.cpp does. A tensor whose rows
    are no multiple of a format's block gets the next one that takes them. IN is only read; OUT is
    there when it is complete.
    """
    from engine.aside import check
    from engine.embedded import resolve
    from engine.gguf_file import GGUFFile
    from engine.quantise import Recipe, choices, quantise
    from engine.quantise.importance import read
    from engine.shell.show import loading, stderr

    overrides = []
    for setting in tensor_types or ():
        pattern, equals, name = setting.rpartition("=")
        if not equals:
            raise typer.BadParameter(f"--tensor-type {setting}: want REGEX=FORMAT")
        overrides.append((pattern, name.upper()))
    recipe = Recipe(
        type=type_,
        pure=pure,
        overrides=tuple(overrides),
        output=output_type and output_type.upper(),
        embedding=embedding_type and embedding_type.upper(),
        importance=read(imatrix) if imatrix else None,
        requantise=requantise,
    )
    with GGUFFile(resolve(model)) as file:
        plan = choices(file, recipe)
        if not dry_run:
            check(out, file.path)
            with loading(f"quantising {out.name} (MB)") as watcher:
                quantise(
                    file,
                    out,
                    recipe,
                    threads=threads,
                    watch=watcher.packed,
                    certified=watcher.certified,
                )
    for note in _notes(plan):
        stderr.print(f"note: {note}", style="yellow", highlight=False, markup=False)
    if as_json:
        print(json.dumps([_row(choice) for choice in plan]))
    else:
        _show(plan, dry_run)


def _notes(plan: "Sequence[Choice]") -> list[str]:
    """What is to be said of tensors, each once: of which, or of how many."""
    named: dict[str, list[str]] = {}
    for choice in plan:
        if choice.note:
            named.setdefault(choice.note, []).append(choice.tensor.name)
    return [
        f"{names[0] if len(names) == 1 else f'{len(names)} tensors'}: {note}"
        for note, names in named.items()
    ]


def _row(choice: "Choice") -> dict[str, str | int]:
    return {
        "tensor": choice.tensor.name,
        "from": choice.tensor.type_name,
        "to": choice.format,
        "bytes": choice.becomes.n_bytes,
        "note": choice.note,
    }


def _show(plan: "Sequence[Choice]", dry_run: bool) -> None:
    """A line for each kind of change, or in a dry run for each tensor, and the sum."""
    from rich.markup import escape
    from rich.table import Column, Table

    from engine.shell.show import stdout

    console = stdout()
    numbers = [Column(name, justify="right") for name in ("weights", "bytes")]
    if dry_run:
        table = Table("tensor", "from", "to", *numbers)
        for c in plan:
            weights = math.prod(c.tensor.dims)
            table.add_row(
                escape(c.tensor.name), c.tensor.type_name, c.format, f"{weights:,}",
                f"{c.becomes.n_bytes:,}",
            )  # fmt: skip
    else:
        table = Table("from", "to", Column("tensors", justify="right"), *numbers)
        tensors: Counter[tuple[str, str]] = Counter()
        weights_of: Counter[tuple[str, str]] = Counter()
        bytes_of: Counter[tuple[str, str]] = Counter()
        for c in plan:
            change = c.tensor.type_name, c.format
            tensors[change] += 1
            weights_of[change] += math.prod(c.tensor.dims)
            bytes_of[change] += c.becomes.n_bytes
        for change, count in tensors.most_common():
            table.add_row(*change, str(count), f"{weights_of[change]:,}", f"{bytes_of[change]:,}")
    console.print(table)
    before = sum(c.tensor.n_bytes for c in plan)
    after = sum(c.becomes.n_bytes for c in plan)
    elements = max(1, sum(math.prod(c.tensor.dims) for c in plan))
    console.print(
        f"{before:,} bytes of tensors become {after:,}: {8 * before / elements:.2f} bits a weight"
        f" become {8 * after / elements:.2f}",
        highlight=False,
    )
