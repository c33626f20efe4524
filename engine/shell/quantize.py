"""assay quantize: a model in another weight format."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engine.shell.command_line import options as o
from engine.shell.command_line.command import as_usage
from engine.shell.command_line.groups import option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.quantise import Choice


def quantize(
    model: Annotated[str, typer.Argument(metavar="IN", help="A GGUF file, or e.g. story.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write.")],
    type_: Annotated[
        str, typer.Argument(metavar="TYPE", help="A format or mix, such as Q8_0 or Q4_K_M.")
    ],
    imatrix: Path | None = option(None, "Importance matrix from `assay imatrix` or llama.cpp."),
    pure: bool = option(False, "All matrices in the same format, no mix."),
    tensor_types: list[str] | None = option(
        None,
        "Tensors whose name matches get this format; the first that matches. May repeat.",
        "--tensor-type",
        metavar="REGEX=FORMAT",
    ),
    output_type: str | None = option(None, "Format of the output matrix."),
    embedding_type: str | None = option(None, "Format of the token embedding."),
    requantise: bool = option(
        False, "Take quantised tensors too; errors add up.", "--allow-requantize"
    ),
    dry_run: bool = option(False, "Show what would be done, write nothing."),
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
    from engine.atomic_write import check
    from engine.embedded import resolve
    from engine.gguf.file import GGUFFile
    from engine.quantise import Recipe, choices, quantise
    from engine.quantise.importance import read
    from engine.shell.show import loading
    from engine.shell.terminal import note

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
    with as_usage():
        _ = recipe.mix, recipe.rules  # which complain
    with GGUFFile(resolve(model)) as file:
        plan = choices(file, recipe)
        if not dry_run:
            check(out, file.path)
            with loading(f"quantising {out.name} (MB)") as watcher:
                packed, tried = watcher.packed, watcher.certified
                quantise(file, out, recipe, threads=threads, progress=packed, certified=tried)
    for line in _notes(plan):
        note(line)
    if as_json:
        print(json.dumps([_row(choice) for choice in plan]))
    else:
        _show(plan, dry_run)


def _notes(plan: "Sequence[Choice]") -> list[str]:
    """Notes on tensors, each once: of which, or of how many."""
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
    """Print a line for each kind of change, or in a dry run for each tensor, and the total."""
    from engine.shell.terminal import figures, print_table, stdout

    if dry_run:
        print_table(
            ("tensor", "from", "to", *figures("weights", "bytes")),
            (
                (c.tensor.name, c.tensor.type_name, c.format, c.weights, c.becomes.n_bytes)
                for c in plan
            ),
        )
    else:
        changes: dict[tuple[str, str], list[Choice]] = {}
        for choice in plan:
            changes.setdefault((choice.tensor.type_name, choice.format), []).append(choice)
        print_table(
            ("from", "to", *figures("tensors", "weights", "bytes")),
            (
                (*change, len(of), sum(c.weights for c in of), sum(c.becomes.n_bytes for c in of))
                for change, of in sorted(changes.items(), key=lambda row: -len(row[1]))
            ),
        )
    before = sum(c.tensor.n_bytes for c in plan)
    after = sum(c.becomes.n_bytes for c in plan)
    elements = max(1, sum(c.weights for c in plan))
    stdout().print(
        f"{before:,} bytes of tensors become {after:,}: {8 * before / elements:.2f} bits a weight"
        f" become {8 * after / elements:.2f}",
        highlight=False,
    )
