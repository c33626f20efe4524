"""Writes the sparse file of a dense model: the same tensors, down transposed, plus predictors."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.file_errors import shown_path
from engine.gguf.cursor import shown
from engine.gguf.edit import keys_of, write_from
from engine.gguf.file import Bytes, GGUFFile, TensorInfo
from engine.gguf.tensor_reader import TensorReader
from engine.gguf.writer import Keys, NewTensor, f32
from engine.progress import ProgressCallback
from engine.quantise.mixes import fitting
from engine.quantise.values import Formats, decoding, encoding, misfit
from engine.sparsify.gather import SparsifyError
from engine.sparsity import MAGIC, THRESHOLD
from kernels.certify import Certified
from kernels.cpu.runtime.cores import physical_cores
from kernels.cpu.runtime.team import Team
from reference.formats import FORMATS
from reference.op import Array

WORDS = {
    "F32": np.uint32,
    "F16": np.uint16,
    "BF16": np.uint16,
}  # formats of one element each: only moved
DOWN = "ffn_down.weight"


@dataclass(frozen=True, slots=True)
class Predictor:
    """Predicts a block's active neurons from its input p: those with fc2 . relu(fc1 . p) at or
    above the threshold. fc1 float32 [rank, hidden], fc2 float32 [ffn, rank]."""

    fc1: Array
    fc2: Array

    @property
    def rank(self) -> int:
        return len(self.fc1)

    def rounded(self) -> "Predictor":
        """The predictor as the file will hold it."""
        return Predictor(*(m.astype(np.float16).astype(np.float32) for m in (self.fc1, self.fc2)))

    def logits(self, inputs: Array) -> Array:
        """float32 [tokens, ffn] from inputs float32 [tokens, hidden]."""
        return np.asarray(np.maximum(inputs @ self.fc1.T, 0) @ self.fc2.T)


def check(file: GGUFFile) -> int:
    """The blocks of a dense model that can be made sparse. Raises `SparsifyError`."""
    where = shown_path(file.path)
    if file.magic == MAGIC or "blk.0.fc1.weight" in file.tensors:
        raise SparsifyError(f"{where}: this model is sparse already")
    blocks = file.metadata.get(f"{file.metadata.get('general.architecture')}.block_count", 0)
    for i in range(blocks if isinstance(blocks, int) else 0):
        for part in ("gate", "up", "down"):
            name = f"blk.{i}.ffn_{part}.weight"
            if name not in file.tensors:
                raise SparsifyError(f"{where}: tensor {name} is missing")
        down = file.tensors[f"blk.{i}.{DOWN}"]
        form = FORMATS.get(down.type_name)
        if form is None or form.encode is None:
            raise SparsifyError(
                f"{where}: tensor {down.name} is {down.type_name}, which nothing can be written in"
            )
    return int(blocks)


def layout(file: GGUFFile, ranks: Sequence[int]) -> list[NewTensor]:
    """The sparse file's tensors, with predictors of these ranks after each block's down."""
    found: list[NewTensor] = []
    for tensor in file.tensors.values():
        if not tensor.name.endswith(DOWN):
            found.append(NewTensor(tensor.name, tensor.type_name, tensor.dims))
            continue
        block = tensor.name.removesuffix(f".{DOWN}")
        hidden, ffn = tensor.dims
        rank = ranks[int(block.removeprefix("blk."))]
        found += [
            NewTensor(
                f"{block}.ffn_down_t.weight", fitting(tensor.type_name, hidden), (ffn, hidden)
            ),
            NewTensor(f"{block}.fc1.weight", "F16", (rank, hidden)),
            NewTensor(f"{block}.fc2.weight", "F16", (ffn, rank)),
        ]
    return found


def export(
    file: GGUFFile,
    out: Path,
    predictors: Sequence[Predictor],
    threshold: float,
    *,
    more_keys: Keys | None = None,
    threads: int = 0,
    progress: ProgressCallback | None = None,
    certified: Certified | None = None,
) -> None:
    """Write the sparse model, with a predictor for each block and one threshold for all.

    Down is transposed in its own format; quantised rows are dequantised for that and quantised
    again. `progress` receives bytes written and in total. Raises `SparsifyError`, `OutputError` or
    `GGUFError` and then leaves nothing of `out`.
    """
    blocks = check(file)
    if len(predictors) != blocks:
        raise SparsifyError(f"{len(predictors)} predictors for {blocks} blocks")
    tensors = layout(file, [p.rank for p in predictors])
    downs = [t for t in file.tensors.values() if t.name.endswith(DOWN) and t.type_name not in WORDS]
    needs = [decoding(tensor.type_name, tensor.dims[1]) for tensor in downs]
    needs += [encoding(fitting(t.type_name, t.dims[0]), t.dims[0]) for t in downs]

    def pieces(reader: TensorReader) -> Iterator[Bytes]:
        for tensor in file.tensors.values():
            if tensor.name.endswith(DOWN):
                predictor = predictors[int(tensor.name.split(".")[1])]
                yield transposed(np.concatenate(list(reader.rows(tensor))), tensor, formats)
                yield from _matrices(predictor, tensor.name.removesuffix(DOWN))
            else:
                yield from reader.rows(tensor)

    keys = keys_of(file) | {THRESHOLD: f32(threshold)} | dict(more_keys or {})
    with Team(threads or physical_cores()) as team:
        formats = Formats(team, needs, certified)
        write_from(file, out, keys, tensors, pieces, progress, magic=MAGIC)


def _matrices(predictor: Predictor, block: str) -> Iterator[Bytes]:
    """The bytes of fc1 and fc2; their names begin with `block`."""
    for name, matrix in (("fc1", predictor.fc1), ("fc2", predictor.fc2)):
        if fault := misfit(matrix, "F16"):
            raise SparsifyError(f"tensor {block}{name}.weight: {fault}")
        yield matrix.astype(np.float16).view(np.uint8).reshape(-1)


def transposed(stored: Bytes, tensor: TensorInfo, formats: Formats) -> Bytes:
    """The rows of a tensor's transpose, from its rows uint8 [rows, row_bytes], flat."""
    if word := WORDS.get(tensor.type_name):
        return np.ascontiguousarray(stored.view(word).T).view(np.uint8).reshape(-1)
    rows, elements = tensor.dims
    turned = formats.decoded(stored, tensor.type_name, elements).T
    kind = fitting(tensor.type_name, rows)
    if fault := misfit(turned, kind):
        raise SparsifyError(f"tensor {shown(tensor.name)}: {fault}")
    return formats.encoded(turned, kind)
