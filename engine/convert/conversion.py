"""A checkpoint to a GGUF file: the parts put together, some rows of one tensor in memory."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from gguf.constants import GGML_QUANT_VERSION, LlamaFileType
from gguf.utility import size_label

from engine import aside
from engine import gguf_writer as gw
from engine.config import ModelConfig, ModelError
from engine.convert.checkpoint import DTYPES, Checkpoint, CheckpointError, Tensor
from engine.convert.families import Llama, Source, family_of, neighbours
from engine.convert.fields import Fields
from engine.convert.vocabulary import vocabulary
from kernels.call import call
from kernels.certificates import Store
from kernels.choose import Chooser, Need
from kernels.kernel import Kernel
from reference.formats import FORMATS
from reference.formats.format import Bytes, Floats

FILE_TYPES = {
    "F32": LlamaFileType.ALL_F32,
    "F16": LlamaFileType.MOSTLY_F16,
    "BF16": LlamaFileType.MOSTLY_BF16,
    "Q8_0": LlamaFileType.MOSTLY_Q8_0,
    "Q4_0": LlamaFileType.MOSTLY_Q4_0,
}
OUTTYPES = tuple(FILE_TYPES)
INSTEAD = "F16"  # of a format whose blocks a tensor's rows do not fill
PIECE = 2**22  # elements that are converted at a time
LARGEST_F16 = 65504.0

Watch = Callable[[int, int], None]  # of elements done and the total


@dataclass(frozen=True, slots=True)
class Done:
    """What was written, and what its owner should know of it."""

    tensors: list[gw.NewTensor]
    notes: list[str] = field(default_factory=list)

    @property
    def n_bytes(self) -> int:
        """Of all tensors."""
        return sum(tensor.n_bytes for tensor in self.tensors)


def convert(
    folder: Path, out: Path, outtype: str = "F16", name: str = "", watch: Watch | None = None
) -> Done:
    """Write the model in `folder`: matrices in `outtype`, vectors in F32.

    Raises `CheckpointError` for a folder that is no model this engine runs, and `OutputError` where
    the file cannot be written; then nothing is left of it.
    """
    if outtype not in OUTTYPES:
        raise CheckpointError(f"outtype is {outtype!r}: want one of {', '.join(OUTTYPES)}")
    aside.check(out)
    checkpoint = Checkpoint(folder)
    if out.exists() and any(out.samefile(file) for file in folder.iterdir()):
        raise aside.OutputError(f"{out}: cannot be written: it is a file of the model")
    config = Fields(checkpoint.config, str(folder / "config.json"))
    if method := config.part("quantization_config").get("quant_method"):
        raise config.error(f"its weights are quantised already ({method}): want float weights")
    family = family_of(config)
    family.check(config)
    model_keys = family.keys(config)
    model = _model(config, family, model_keys)
    if model.blocks > len(checkpoint.tensors):  # before anything is made for each block
        raise config.error(
            f"num_hidden_layers is {model.blocks}, but there are {len(checkpoint.tensors)} tensors"
        )
    sources = _present(checkpoint, family.sources(config, model), family, config)
    tokens, notes = vocabulary(checkpoint, model.vocab)
    computed = family.computed(config, model)
    vectors = [gw.NewTensor(n, "F32", array.shape) for n, array in computed.items()]
    stored = [gw.NewTensor(n, _format(s.dims, outtype), s.dims) for n, s in sources.items()]
    if other := [t.name for t in stored if len(t.dims) > 1 and t.type_name != outtype]:
        notes.append(
            f"in {INSTEAD}, for their rows are no whole blocks of {outtype}: {', '.join(other)}"
        )
    total = sum(math.prod(tensor.dims) for tensor in stored)
    keys = {**_general(folder, outtype, name, total), **model_keys, **tokens}
    encode = _Encoder({tensor.type_name for tensor in stored})

    def pieces() -> Iterator[Bytes]:
        done = 0
        for array in computed.values():
            yield array.view(np.uint8)
        for tensor in stored:
            source = sources[tensor.name]
            for rows in _rows(checkpoint.tensors[source.name], source):
                yield encode(rows, tensor.type_name, source.name)
                done += rows.size
                if watch:
                    watch(done, total)
        checkpoint.check_unchanged()

    gw.write_gguf(out, keys, vectors + stored, pieces())
    return Done(vectors + stored, notes)


def _model(config: Fields, family: Llama, keys: gw.Keys) -> ModelConfig:
    """The model as the engine will read it, so that what it refuses is refused now."""
    values = {key: value for key, (_, value) in keys.items()}
    try:
        return ModelConfig.from_metadata(
            values | {"general.architecture": family.gguf}, config.count("vocab_size")
        )
    except ModelError as error:
        raise config.error(str(error)) from None


def _present(
    checkpoint: Checkpoint, wanted: dict[str, Source], family: Llama, config: Fields
) -> dict[str, Source]:
    """Those of the tensors that are there; raises unless all that is needed is, and no more."""
    tensors, folder = checkpoint.tensors, checkpoint.folder
    found = {n: s for n, s in wanted.items() if not s.optional or s.name in tensors}
    for source in found.values():
        if source.name not in tensors:
            raise CheckpointError(f"{folder}: tensor {source.name} is missing")
        tensor = tensors[source.name]
        if tensor.dims != source.dims:
            got, want = list(tensor.dims), list(source.dims)
            raise CheckpointError(f"{folder}: tensor {source.name} is {got}, not {want}")
        if tensor.dtype not in DTYPES:
            raise CheckpointError(
                f"{folder}: tensor {source.name} is {tensor.dtype}; readable are"
                f" {', '.join(DTYPES)}"
            )
    known = {source.name for source in found.values()}
    for name in sorted(set(tensors) - known):
        if not family.is_unused(name, config):
            raise CheckpointError(
                f"{folder}: tensor {name} has no place in this architecture's graph"
            )
    return found


def _format(dims: tuple[int, ...], outtype: str) -> str:
    if len(dims) == 1:
        return "F32"
    return INSTEAD if dims[-1] % FORMATS[outtype].block else outtype


def _rows(tensor: Tensor, source: Source) -> Iterator[Floats]:
    """The tensor's rows as GGUF orders them, whole heads at a time where rope turns them."""
    together, count = source.head_dim or 1, tensor.dims[0]
    step = max(1, PIECE // (together * math.prod(tensor.dims[1:]))) * together
    for first in range(0, count, step):
        rows = tensor.rows(first, min(first + step, count))
        yield neighbours(rows, source.head_dim) if source.head_dim else rows


class _Encoder:
    """Rows to the bytes of a format, by certified kernels."""

    def __init__(self, formats: set[str]) -> None:
        needs = {name: Need("quantise", name) for name in sorted(formats - {"F32"})}
        chosen = Chooser(Store()).choose(list(needs.values()))
        self._kernels: dict[str, Kernel] = {name: chosen[need] for name, need in needs.items()}

    def __call__(self, rows: Floats, format: str, name: str) -> Bytes:
        """float32 [rows, ...] -> uint8; `name` is for messages."""
        largest = np.abs(rows).max(initial=0)
        if not np.isfinite(largest):
            raise CheckpointError(f"tensor {name} holds NaN or infinity")
        if format == "F16" and largest > LARGEST_F16:
            raise CheckpointError(
                f"tensor {name} holds {largest:g}, which is infinity in F16: convert to BF16 or F32"
            )
        rows = np.ascontiguousarray(rows)
        if format == "F32":
            return rows.view(np.uint8)
        return call(self._kernels[format], {"x": rows})["out"]


def _general(folder: Path, outtype: str, name: str, weights: int) -> gw.Keys:
    found = {
        "architecture": gw.text("llama"),
        "type": gw.text("model"),
        "name": gw.text(name or folder.resolve().name),
        "size_label": gw.text(size_label(weights, 0, 0, 0)),
        "file_type": gw.u32(FILE_TYPES[outtype]),
        "quantization_version": gw.u32(GGML_QUANT_VERSION),
    }
    return {f"general.{key}": value for key, value in found.items()}
