"""assay inspect: print a GGUF file's metadata, or copy it with changes."""

import json
import math
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from engine.shell.command_line import options as o
from engine.shell.command_line.groups import option

if TYPE_CHECKING:
    from engine.gguf.file import GGUFFile
    from engine.offload.bundle import Bundle

WIDTH = 72  # characters of a value in the table


def inspect(
    model: o.ModelName,
    key: str | None = option(None, "Print this key's value, nothing else."),
    tensors: bool = option(True, "List the tensors too."),
    settings: list[str] | None = option(
        None, "Change a key; KEY:TYPE=VALUE adds one. May repeat.", "--set", metavar="KEY=VALUE"
    ),
    removed: list[str] | None = option(None, "Drop a key. May repeat.", "--remove", metavar="KEY"),
    out: Path | None = option(None, "Output file of the changed copy.", "-o"),
    as_json: o.Json = False,
) -> None:
    """Print a file's metadata and tensors, or write a copy with other metadata.

    The copy's tensors are the same, byte for byte, and MODEL is never touched. For instance, a
    draft model whose special tokens are numbered as its target's:

    \b
        assay inspect draft.gguf --set tokenizer.ggml.eos_token_id=2 -o draft-2.gguf
    """
    from engine.embedded import resolve
    from engine.gguf.edit import edited, keys_of, rewrite
    from engine.gguf.file import GGUFError, GGUFFile
    from engine.shell.terminal import bytes_bar

    if (out is None) != (not settings and not removed):
        raise typer.BadParameter("--set and --remove go with -o OUT, and -o with one of them")
    with GGUFFile(resolve(model)) as file:
        if out is not None:
            keys = edited(keys_of(file), settings or (), removed or ())
            with bytes_bar(out.name) as progress:
                rewrite(file, keys, out, progress)
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
    """Everything, for programs."""
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
    """Bundles by tensor; none for an inconsistent file, with a note."""
    from engine.offload.bundle import BundleError, bundles
    from engine.shell.terminal import note

    try:
        return {bundle.name: bundle for bundle in bundles(file).values()}
    except BundleError as error:
        note(str(error))
        return {}


def _type_name(file: "GGUFFile", key: str) -> str:
    kind, element = file.value_types[key]
    return kind.name.lower() if element is None else f"[{element.name.lower()}]"


def _show(file: "GGUFFile", tensors: bool) -> None:
    from engine.gguf.cursor import NUMBERS
    from engine.shell.terminal import figures, print_table, stdout

    bundles = _bundles(file)
    keys = []
    for key, value in file.metadata.items():
        if isinstance(value, float):  # as short as its type allows
            value = float(str(NUMBERS[file.value_types[key].kind].type(value)))
        keys.append((key, _type_name(file, key), _short(value)))
    print_table(("key", "type", "value"), keys)
    if tensors:
        rows: list[tuple[object, ...]] = []
        for t in file.tensors.values():
            rows.append((t.name, t.type_name, " x ".join(map(str, t.dims)), t.n_bytes, t.offset))
            if t.name in bundles:
                neurons, dims = bundles[t.name].neurons, bundles[t.name].hidden
                rows += [
                    (f"  {name}", part.format, f"{neurons} x {dims}", neurons * part.n_bytes,
                     f"+ {part.begin:,}")
                    for name, part in bundles[t.name].parts.items()
                ]  # fmt: skip
        print_table(("tensor", "type", *figures("dims", "bytes", "offset")), rows)
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
    stdout().print(
        f"{file.magic} version {file.version}, {file.size:,} bytes; {len(file.metadata)} keys;"
        f" {len(file.tensors)} tensors ({kinds or 'none'}): {elements:,} weights{bits}",
        highlight=False,
    )


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
