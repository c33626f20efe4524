"""Bundles: a neuron's rows of ffn_gate, ffn_up and ffn_down_t side by side on disk, so that one
read brings all of it (LLM in a flash, arXiv 2312.11514: bundling of columns and rows).

A file with bundles is a GGUF file with

    blk.{i}.ffn_bundle.weight   I8 [neurons, stride]; row n is neuron n's row of gate, where there
                                is one, of up and of down_t, each as its format has it, then zeros
    assay.bundle.formats        a text for each block, such as "gate:F16 up:F16 down_t:F16"; an
                                empty one for a block that has no bundle
    assay.bundle.alignment      u32, the alignment to go back to, if the source named one
    general.alignment           4096 or more

in place of blk.{i}.ffn_{gate,up,down_t}.weight. Reads that pass by the system's cache begin and end
at multiples of the disk's sector, hence the alignment and a stride of whole sectors. It is an odd
number of them: sixteen rows that are brought together then begin in all eight sets of a first-level
cache that are a sector apart, while rows of 4096 bytes, say, would evict one another.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from engine.errors import EngineError
from engine.file_errors import shown_path
from engine.gguf.cursor import shown
from engine.gguf.file import GGUFFile, TensorInfo, ValueType
from engine.gguf.writer import NewTensor

PARTS = ("gate", "up", "down_t")  # in row order
UNGATED = PARTS[1:]
FORMATS_KEY = "assay.bundle.formats"
ALIGNMENT_BEFORE = "assay.bundle.alignment"
PAGE = 4096  # alignment of bundles: no disk has larger sectors
SECTOR = 512
SUFFIX = ".ffn_bundle.weight"
UNDO_FIRST = "its neurons are bundled: `assay bundle --undo` gives back the tensors"


class BundleError(EngineError):
    """A model whose neurons cannot be bundled, or a file with inconsistent bundles, in one plain
    line."""


@dataclass(frozen=True, slots=True)
class Part:
    """A neuron's row of one matrix: its format, its offset in the bundle's row, and its bytes."""

    format: str
    begin: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Bundle:
    """A block's bundle: from byte `offset` of the file, a row of `stride` bytes for each of its
    `neurons`. `parts` by name, in order, are rows of `hidden` elements."""

    block: int
    offset: int
    neurons: int
    hidden: int
    stride: int
    parts: Mapping[str, Part]

    @property
    def name(self) -> str:
        return bundle_name(self.block)

    @property
    def tensors(self) -> Mapping[str, NewTensor]:
        """The bundled tensors by part, as tensors of their own."""
        dims = (self.neurons, self.hidden)
        return {
            part: NewTensor(part_name(self.block, part), found.format, dims)
            for part, found in self.parts.items()
        }


def bundle_name(block: int) -> str:
    return f"blk.{block}{SUFFIX}"


def part_name(block: int, part: str) -> str:
    return f"blk.{block}.ffn_{part}.weight"


def is_bundled(file: GGUFFile) -> bool:
    """Whether a file claims to have bundles; `bundles` checks that they are consistent."""
    return FORMATS_KEY in file.metadata or any(name.endswith(SUFFIX) for name in file.tensors)


def bundles(file: GGUFFile) -> dict[int, Bundle]:
    """The bundles by block; empty for a file without. Raises `BundleError`."""
    if not is_bundled(file):
        return {}
    where = shown_path(file.path)
    if FORMATS_KEY not in file.metadata:
        raise BundleError(f"{where}: key {FORMATS_KEY}, which says what bundles hold, is missing")
    if file.value_types[FORMATS_KEY] != ValueType(GGUFValueType.ARRAY, GGUFValueType.STRING):
        raise BundleError(f"{where}: key {FORMATS_KEY} is no array of texts")
    texts = file.metadata[FORMATS_KEY]
    found = {i: _bundle(file, i, text) for i, text in enumerate(texts) if text}
    known = {bundle.name for bundle in found.values()}
    for name in file.tensors:
        if name.endswith(SUFFIX) and name not in known:
            raise BundleError(f"{where}: key {FORMATS_KEY} says nothing of tensor {shown(name)}")
    return found


def unbundled(found: Mapping[int, Bundle]) -> dict[str, TensorInfo]:
    """The bundled tensors by name, at their places in the file."""
    return {
        part_name(bundle.block, part): TensorInfo(
            part_name(bundle.block, part),
            row.format,
            (bundle.neurons, bundle.hidden),
            bundle.offset + row.begin,
            bundle.neurons * row.n_bytes,
            bundle.stride,
        )
        for bundle in found.values()
        for part, row in bundle.parts.items()
    }


def neurons_of(file: GGUFFile, block: int) -> tuple[int, int]:
    """A block's number of neurons and their row length, from its predictor: fc1 is [rank, hidden],
    fc2 [neurons, rank]. Raises `BundleError`."""
    where = shown_path(file.path)
    dims = []
    for name in (f"blk.{block}.fc1.weight", f"blk.{block}.fc2.weight"):
        if name not in file.tensors:
            raise BundleError(f"{where}: tensor {name} is missing")
        dims.append(file.tensors[name].dims)
    fc1, fc2 = dims
    if len(fc1) != 2 or len(fc2) != 2 or fc1[0] != fc2[1] or not fc1[1] or not fc2[0]:
        raise BundleError(
            f"{where}: blk.{block}: fc1 {list(fc1)} and fc2 {list(fc2)} are no predictor"
        )
    return fc2[0], fc1[1]


def laid_out(formats: Mapping[str, str], hidden: int) -> tuple[dict[str, Part], int]:
    """Offsets of parts of these formats in a row, and the rows' stride."""
    parts, begin = {}, 0
    for part, name in formats.items():
        block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
        parts[part] = Part(name, begin, hidden // block * block_bytes)
        begin += parts[part].n_bytes
    return parts, stride_of(begin)


def stride_of(n_bytes: int) -> int:
    """The next odd number of sectors, in bytes."""
    return SECTOR * (-(-n_bytes // SECTOR) | 1)


def _bundle(file: GGUFFile, block: int, text: str) -> Bundle:
    where, name = shown_path(file.path), bundle_name(block)
    tensor = file.tensors.get(name)
    if tensor is None:
        raise BundleError(f"{where}: tensor {name} is missing")
    if twice := [n for n in (part_name(block, part) for part in PARTS) if n in file.tensors]:
        raise BundleError(f"{where}: tensor {twice[0]} is there beside its bundle")
    neurons, hidden = neurons_of(file, block)
    formats = dict(_formats(text, hidden, f"{where}: key {FORMATS_KEY}, block {block}"))
    parts, stride = laid_out(formats, hidden)
    if (tensor.type_name, tensor.dims) != ("I8", (neurons, stride)):
        raise BundleError(
            f"{where}: tensor {name} is {tensor.type_name} {list(tensor.dims)},"
            f" not I8 {[neurons, stride]}"
        )
    if tensor.offset % PAGE:
        raise BundleError(
            f"{where}: tensor {name} begins at byte {tensor.offset}, no multiple of {PAGE}"
        )
    return Bundle(block, tensor.offset, neurons, hidden, stride, parts)


def _formats(text: str, hidden: int, where: str) -> Iterator[tuple[str, str]]:
    """Parts and their formats, parsed from a text such as "up:F16 down_t:Q4_0"."""
    pairs = [word.partition(":")[::2] for word in text.split(" ")]
    if tuple(part for part, _ in pairs) not in (PARTS, UNGATED):
        raise BundleError(f"{where}: {shown(text)} does not name {', '.join(PARTS)} in this order")
    for part, name in pairs:
        if name not in GGMLQuantizationType.__members__:
            raise BundleError(f"{where}: there is no format {shown(name)}")
        size = GGML_QUANT_SIZES[GGMLQuantizationType[name]][0]
        if hidden % size:
            raise BundleError(f"{where}: {name} holds multiples of {size} elements, not {hidden}")
        yield part, name
