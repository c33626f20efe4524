"""Writes files with bundled neurons (layout: bundle.py), and the original files from them."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from gguf.constants import GGUF_DEFAULT_ALIGNMENT, GGUFValueType

from engine.file_errors import shown_path
from engine.gguf.edit import copied, keys_of, write_from
from engine.gguf.file import ALIGNMENT, Bytes, GGUFFile, TensorInfo
from engine.gguf.tensor_reader import TensorReader
from engine.gguf.writer import Keys, NewTensor, texts, u32
from engine.offload.bundle import (
    ALIGNMENT_BEFORE,
    FORMATS_KEY,
    PAGE,
    PARTS,
    UNGATED,
    Bundle,
    BundleError,
    bundle_name,
    bundles,
    is_bundled,
    laid_out,
    neurons_of,
    part_name,
)
from engine.progress import ProgressCallback

PIECE = 2**22  # bytes at a time

Sources = Mapping[str, TensorInfo]  # of a bundle, by part


def bundle(file: GGUFFile, out: Path, progress: ProgressCallback | None = None) -> None:
    """Write `out`: the neurons of each block with a predictor become a bundle in the place of the
    first of their tensors; everything else is copied.

    `progress` receives bytes written and in total. Raises `BundleError`, `OutputError` or
    `GGUFError` and then leaves nothing of `out`.
    """
    blocks = _blocks(file)
    block_of = {tensor.name: i for i, found in enumerate(blocks) for tensor in found.values()}
    tensors: dict[str, NewTensor] = {}
    sources: dict[str, Sources] = {}
    for tensor in file.tensors.values():
        i = block_of.get(tensor.name)
        if i is None:
            tensors[tensor.name] = copied(tensor)
        elif bundle_name(i) not in tensors:
            formats = {part: source.type_name for part, source in blocks[i].items()}
            neurons, hidden = tensor.dims
            dims = neurons, laid_out(formats, hidden)[1]
            tensors[bundle_name(i)] = NewTensor(bundle_name(i), "I8", dims)
            sources[bundle_name(i)] = blocks[i]

    def pieces(reader: TensorReader) -> Iterator[Bytes]:
        for name, new in tensors.items():
            if name in sources:
                yield from _side_by_side(reader, sources[name], new.dims)
            else:
                yield from reader.rows(file.tensors[name], PIECE)

    keys = keys_of(file) | {
        ALIGNMENT: u32(max(PAGE, file.metadata.get(ALIGNMENT, GGUF_DEFAULT_ALIGNMENT))),
        FORMATS_KEY: texts(
            " ".join(f"{part}:{tensor.type_name}" for part, tensor in found.items())
            for found in blocks
        ),
    }
    if ALIGNMENT in file.metadata:
        keys[ALIGNMENT_BEFORE] = u32(file.metadata[ALIGNMENT])
    write_from(file, out, keys, list(tensors.values()), pieces, progress)


def unbundle(file: GGUFFile, out: Path, progress: ProgressCallback | None = None) -> None:
    """Write `out` as it was before `bundle`: keys, and tensors bit for bit, a bundle's in its
    place. `progress` and errors as there."""
    found = {bundle.name: bundle for bundle in bundles(file).values()}
    if not is_bundled(file):
        raise BundleError(f"{shown_path(file.path)}: its neurons are not bundled")
    tensors: list[NewTensor] = []
    for tensor in file.tensors.values():
        tensors += found[tensor.name].tensors.values() if tensor.name in found else [copied(tensor)]

    def pieces(reader: TensorReader) -> Iterator[Bytes]:
        for tensor in file.tensors.values():
            if tensor.name in found:
                yield from _one_after_another(reader, tensor, found[tensor.name])
            else:
                yield from reader.rows(tensor, PIECE)

    write_from(file, out, _keys_before(file), tensors, pieces, progress)


def _blocks(file: GGUFFile) -> list[Sources]:
    """The parts of each block's bundle, in row order; none where there is no predictor. Raises
    `BundleError`."""
    where = shown_path(file.path)
    if is_bundled(file):
        raise BundleError(f"{where}: its neurons are bundled already")
    key = f"{file.metadata.get('general.architecture')}.block_count"
    count = file.metadata.get(key)
    if type(count) is not int or not 0 <= count <= len(file.tensors):
        raise BundleError(f"{where}: {key} is {count!r}, no number of blocks that could be there")
    found = [_sources(file, i) for i in range(count)]
    if not any(found):
        raise BundleError(
            f"{where}: no block has a predictor, without which all neurons are read: `assay"
            " sparsify` makes predictors for a model with ReLU"
        )
    return found


def _sources(file: GGUFFile, block: int) -> Sources:
    if not any(f"blk.{block}.fc{n}.weight" in file.tensors for n in (1, 2)):
        return {}
    where, dims = shown_path(file.path), neurons_of(file, block)
    gated = part_name(block, PARTS[0]) in file.tensors
    found = {}
    for part in PARTS if gated else UNGATED:
        name = part_name(block, part)
        if name not in file.tensors:
            advice = ": the rows of ffn_down are no neurons'; `assay sparsify` transposes it"
            why = advice if f"blk.{block}.ffn_down.weight" in file.tensors else ""
            raise BundleError(f"{where}: tensor {name} is missing{why}")
        tensor = file.tensors[name]
        if tensor.dims != dims:
            raise BundleError(
                f"{where}: tensor {name} is {list(tensor.dims)}, not {list(dims)} as the predictor"
                " has it"
            )
        found[part] = tensor
    return found


def _side_by_side(reader: TensorReader, sources: Sources, dims: tuple[int, ...]) -> Iterator[Bytes]:
    """A bundle of these dims, uint8 [rows, stride], in pieces."""
    neurons, stride = dims
    step = max(1, PIECE // stride)
    piece = np.zeros((min(step, neurons), stride), np.uint8)
    for first in range(0, neurons, step):
        rows = piece[: neurons - first]
        begin = 0
        for source in sources.values():
            n_bytes = source.row_bytes
            stored = reader.read(source.offset + first * n_bytes, len(rows) * n_bytes)
            rows[:, begin : begin + n_bytes] = stored.reshape(len(rows), n_bytes)
            begin += n_bytes
        yield rows


def _one_after_another(reader: TensorReader, tensor: TensorInfo, found: Bundle) -> Iterator[Bytes]:
    """The tensors of a bundle, uint8 [rows, row_bytes], in pieces."""
    for part in found.parts.values():
        for rows in reader.rows(tensor, PIECE):
            yield np.ascontiguousarray(rows[:, part.begin : part.begin + part.n_bytes])


def _keys_before(file: GGUFFile) -> Keys:
    keys = keys_of(file)
    del keys[FORMATS_KEY]
    if ALIGNMENT_BEFORE not in keys:
        keys.pop(ALIGNMENT, None)
        return keys
    kind, alignment = keys.pop(ALIGNMENT_BEFORE)
    if kind.kind != GGUFValueType.UINT32 or alignment.bit_count() != 1:
        raise BundleError(
            f"{shown_path(file.path)}: key {ALIGNMENT_BEFORE} is no power of two in UINT32"
        )
    return keys | {ALIGNMENT: u32(alignment)}
