"""assay inspect: what a GGUF file says, and a copy that says something else."""

import json
import math
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engine.shell import options as o

if TYPE_CHECKING:
    from engine.gguf_file import GGUFFile
    from engine.offload.bundle import Bundle

WIDTH = 72  # characters of a value in the table


def inspect(
    model: o.ModelName,
    key: Annotated[str | None, typer.Option(help="Print this key's value, nothing else.")] = None,
    tensors: Annotated[bool, typer.Option(help="List the tensors too.")] = True,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change a key; KEY:TYPE=VALUE adds one. May repeat."
        ),
    ] = None,
    removed: Annotated[
        list[str] | None, typer.Option("--remove", metavar="KEY", help="Drop a key. May repeat.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Where the changed copy goes.")
    ] = None,
    as_json: o.Json = False,
) -> None:
    """Print a file's metadata and tensors, or write a copy with other metadata.

    The copy's tensors are the same, byte for byte, and MODEL is never touched. For instance, a
    draft model whose special tokens are numbered as its target's:

    \b
        assay inspect draft.gguf --set tokenizer.ggml.eos_token_id=2 -o draft-2.gguf
    """
    from engine.embedded import resolve
    from engine.gguf_edit import edited, keys_of, rewrite
    from engine.gguf_file import GGUFError, GGUFFile
    from engine.shell.show import bytes_bar

    if (out is None) != (not settings and not removed):
        raise typer.BadParameter("--set and --remove go with -o OUT, and -o with one of them")
    with GGUFFile(resolve(model)) as file:
        if out is not None:
            keys = edited(keys_of(file), settings or (), removed or ())
            with bytes_bar(out.name) as watch:
                rewrite(file, keys, out, watch)
            print(f"{out}: {len(keys)} keys, {len(file.tensors)} tensors")
        elif key is not None:
            if key not in file.metadata:
                raise GGUFError(f"{file.path}: there is no key {key!r}")
            value = file.metadata[key]
            print(json.dumps(value) if as_json or not isinstance(value, str) else value)
        elif as_json:
            print(json.dumps(_described(file, tensors)))
        else:
            _show(file, tensors)


def _described(file: "GGUFFile", tensors: bool) -> dict[str, Any]:
    """All of it, for programs."""
    described: dict[str, Any] = {
        "file": str(file.path),
        "bytes": file.size,
        "magic": file.magic,
        "version": file.version,
        "metadata": file.metadata,
        "types": {key: _type_name(file, key) for key in file.metadata},
    }
    if tensors:
        described["tensors"] = [
            {"name": t.name, "type": t.type_name, "dims": t.dims, "offset": t.offset,
             "bytes": t.n_bytes}
            for t in file.tensors.values()
        ]  # fmt: skip
        described["bundles"] = [asdict(bundle) for bundle in _bundles(file).values()]
    return described


def _bundles(file: "GGUFFile") -> "dict[str, Bundle]":
    """By tensor; of a file that contradicts itself none, with a note."""
    from engine.offload.bundle import BundleError, bundles
    from engine.shell.show import stderr

    try:
        return {bundle.name: bundle for bundle in bundles(file).values()}
    except BundleError as error:
        note = f"note: {error}"
        stderr.print(note, style="yellow", highlight=False, markup=False, soft_wrap=True)
        return {}


def _type_name(file: "GGUFFile", key: str) -> str:
    kind, element = file.value_types[key]
    return kind.name.lower() if element is None else f"[{element.name.lower()}]"


def _show(file: "GGUFFile", tensors: bool) -> None:
    from rich.markup import escape
    from rich.table import Table

    from engine.gguf_cursor import NUMBERS
    from engine.shell.show import stdout

    console, bundles = stdout(), _bundles(file)
    table = Table("key", "type", "value")
    for key, value in file.metadata.items():
        if isinstance(value, float):  # as short as its type allows
            value = float(str(NUMBERS[file.value_types[key].kind].type(value)))
        table.add_row(escape(key), escape(_type_name(file, key)), escape(_short(value)))
    console.print(table)
    if tensors:
        table = Table("tensor", "type", *(_right(name) for name in ("dims", "bytes", "offset")))
        for t in file.tensors.values():
            dims = " x ".join(map(str, t.dims))
            table.add_row(escape(t.name), t.type_name, dims, f"{t.n_bytes:,}", f"{t.offset:,}")
            if t.name in bundles:
                for name, part in bundles[t.name].parts.items():
                    dims = f"{bundles[t.name].neurons} x {bundles[t.name].hidden}"
                    n_bytes = f"{bundles[t.name].neurons * part.n_bytes:,}"
                    table.add_row(f"  {name}", part.format, dims, n_bytes, f"+ {part.begin:,}")
        console.print(table)
    counts: Counter[str] = Counter()
    elements = 0
    for t in file.tensors.values():
        found = bundles.get(t.name)
        counts["bundles" if found else t.type_name] += 1
        held = found.tensors.values() if found else (t,)
        elements += sum(math.prod(tensor.dims) for tensor in held)
    stored = sum(t.n_bytes for t in file.tensors.values())
    kinds = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    bits = f", {8 * stored / elements:.2f} bits a weight" if elements else ""
    console.print(
        f"{file.magic} version {file.version}, {file.size:,} bytes; {len(file.metadata)} keys;"
        f" {len(file.tensors)} tensors ({kinds or 'none'}): {elements:,} weights{bits}",
        highlight=False,
    )


def _right(name: str) -> Any:
    from rich.table import Column

    return Column(name, justify="right")


def _short(value: Any) -> str:
    """A value on one line: of a long array, the count and its first elements."""
    text = json.dumps(value[:8] if isinstance(value, list) else value, ensure_ascii=False)
    if not isinstance(value, list):
        text = value if isinstance(value, str) else text
        text = text if text.isprintable() else repr(text)
    elif len(value) > 8:
        text = f"{len(value):,} of {text[:-1]}, …"
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"
