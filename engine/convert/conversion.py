"""Converts a checkpoint to a GGUF file, with some rows of one tensor in memory at a time."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from gguf.constants import GGML_QUANT_VERSION
from gguf.utility import size_label

from engine import atomic_write
from engine.config import ModelConfig, ModelError
from engine.convert.checkpoint import Checkpoint, Tensor, demand
from engine.convert.family import Family, Source
from engine.convert.fields import Fields
from engine.convert.json_files import CheckpointError
from engine.convert.models.llama import neighbours
from engine.convert.predictors import read_predictors
from engine.convert.table import family_of
from engine.convert.vocabulary import vocabulary
from engine.gguf import writer as gw
from engine.metadata.config import config_of
from engine.progress import ProgressCallback
from engine.quantise.mixes import MIXES, fitting
from engine.quantise.values import Formats, encoding, misfit
from engine.sparsity import MAGIC, THRESHOLD
from engine.torch_file import TorchFileError
from kernels.certify import Certified
from kernels.cpu.runtime.cores import physical_cores
from kernels.cpu.runtime.team import Team
from reference.formats.format import Bytes, Floats

OUTTYPES = ("F32", "F16", "BF16", "Q8_0")
PIECE = 2**22  # elements converted at a time


@dataclass(frozen=True, slots=True)
class Done:
    """The written file, and notes for its owner."""

    tensors: list[gw.NewTensor]
    notes: list[str] = field(default_factory=list)

    @property
    def n_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.n_bytes for tensor in self.tensors)


def convert(
    folder: Path,
    out: Path,
    outtype: str = "F16",
    name: str = "",
    *,
    predictors: Path | None = None,
    threads: int = 0,
    progress: ProgressCallback | None = None,
    certified: Certified | None = None,
) -> Done:
    """Write the model in `folder`: matrices in `outtype`, one of OUTTYPES, and vectors in F32. With
    the folder of its `predictors` it becomes a sparse model, in PowerInfer's format.

    Raises `CheckpointError` for a folder that is no model this engine runs, and `OutputError` where
    the file cannot be written; then nothing is left of it.
    """
    if outtype not in OUTTYPES:
        raise CheckpointError(f"outtype is {outtype!r}: want {', '.join(OUTTYPES)}")
    atomic_write.check(out)
    checkpoint = Checkpoint(folder)
    folders = [folder, *([predictors] if predictors and predictors.is_dir() else [])]
    if out.exists() and any(out.samefile(file) for some in folders for file in some.iterdir()):
        raise atomic_write.OutputError(f"{out}: cannot be written: it is a file of the model")
    config = Fields(checkpoint.config, str(folder / "config.json"))
    family = family_of(config)
    config = family.usual_words(config)
    family.check(config)
    checkpoint.tensors = family.named(checkpoint.tensors)
    config = family.there(config, checkpoint.tensors)
    config, apart = _tied_as_stored(config, family, checkpoint.tensors)
    keys = dict(family.keys(config))
    model = _model(config, family, keys, len(checkpoint.tensors))
    sources = _present(checkpoint, family.sources(config, model), family, config)
    weights = sum(math.prod(source.dims) for source in sources.values())
    tokens, notes = vocabulary(checkpoint, model.vocab)
    if predictors:
        found = read_predictors(predictors, model)
        sources, checkpoint.tensors = found.into(sources, checkpoint.tensors)
        checkpoint.watch(found.files)
        keys[THRESHOLD] = gw.f32(found.threshold)
        notes += found.notes
    else:
        notes += family.notes(config)
    notes += apart
    computed = family.computed(config, model)
    vectors = [gw.NewTensor(n, "F32", array.shape) for n, array in computed.items()]
    stored = [_stored(name, source, outtype) for name, source in sources.items()]
    done = Done(vectors + stored, notes)
    meant = (outtype, "F32", *(source.format for source in sources.values()))
    if other := [t for t in stored if t.type_name not in meant]:
        names = ", ".join(tensor.name for tensor in other)
        notes.append(f"in F16, for their rows are no whole blocks of {outtype}: {names}")
    keys = {**_general(family, folder, outtype, name, weights), **keys, **tokens}

    def pieces(formats: Formats) -> Iterator[Bytes]:
        for array in computed.values():
            yield array.view(np.uint8)
        for tensor in stored:
            source = sources[tensor.name]
            for rows in _rows(checkpoint.tensors[source.name], source, tensor.type_name):
                yield formats.encoded(rows, tensor.type_name)
        checkpoint.check_unchanged()

    needs = [encoding(tensor.type_name, tensor.dims[-1]) for tensor in stored]
    with Team(threads or physical_cores()) as team:
        formats = Formats(team, needs, certified)
        magic = MAGIC if predictors else "GGUF"
        try:
            gw.write_gguf(out, keys, done.tensors, pieces(formats), magic=magic, progress=progress)
        except TorchFileError as error:
            raise CheckpointError(str(error)) from None
    return done


def _stored(name: str, source: Source, outtype: str) -> gw.NewTensor:
    """A tensor's format. A matrix of one row counts as a vector, as in llama.cpp's files; routers
    and norms of heads stay as they are."""
    dims = source.dims
    if name.endswith("ffn_gate_inp_shexp.weight"):
        dims = dims[1:]
    kept = name.endswith(("ffn_gate_inp.weight", "_norm.weight"))
    whole = len(dims) == 1 or source.exact or kept
    wanted = source.format or fitting(outtype, dims[-1])
    return gw.NewTensor(name, "F32" if whole else wanted, dims)


def _model(config: Fields, family: Family, keys: gw.Keys, tensors: int) -> ModelConfig:
    """The model as the engine will read it, so that whatever it refuses is refused now."""
    values = {key: value for key, (_, value) in keys.items()}
    values["general.architecture"] = family.gguf
    try:
        model = config_of(values, config.count("vocab_size"))
    except ModelError as error:
        raise config.error(str(error)) from None
    if model.blocks > tensors:  # before anything is built for each block
        raise config.error(f"num_hidden_layers is {model.blocks}, but there are {tensors} tensors")
    return model


def _tied_as_stored(
    config: Fields, family: Family, tensors: Mapping[str, Tensor]
) -> tuple[Fields, list[str]]:
    """Do as transformers: an output that is stored and is not the embedding is the output, whatever
    config.json says; and a note on that."""
    names = (f"{family.modules[part]}.weight" for part in ("token_embd", "output"))
    embedding, output = (tensors.get(name) for name in names)
    if not (family.tied(config) and embedding and output) or _alike(embedding, output):
        return config, []
    said = "its output is not its embedding, though config.json ties them: both are kept"
    fields = {**config.values, "tie_word_embeddings": False, "tie_embedding": False}
    return Fields(fields, config.place), [said]


def _alike(one: Tensor, other: Tensor) -> bool:
    if (one.dims, one.dtype) != (other.dims, other.dtype):
        return False
    count, step = one.dims[0], max(1, PIECE // math.prod(one.dims[1:]))
    pieces = ((first, min(first + step, count)) for first in range(0, count, step))
    return all(np.array_equal(one.rows(*piece), other.rows(*piece)) for piece in pieces)


def _present(
    checkpoint: Checkpoint, wanted: dict[str, Source], family: Family, config: Fields
) -> dict[str, Source]:
    """The tensors that are present; raises for missing and unknown ones."""
    tensors, folder = checkpoint.tensors, checkpoint.folder
    found = {n: s for n, s in wanted.items() if not s.optional or s.name in tensors}
    for source in found.values():
        if source.name not in tensors:
            raise CheckpointError(f"{folder}: tensor {source.name} is missing")
        dims = source.theirs or source.dims
        demand(tensors[source.name], dims, f"{folder}: tensor {source.name}")
    known = {source.name for source in found.values()}
    for name in sorted(set(tensors) - known):
        if not family.is_unused(name, config):
            raise CheckpointError(
                f"{folder}: tensor {name} has no place in this architecture's graph"
            )
    return found


def _rows(tensor: Tensor, source: Source, format: str) -> Iterator[Floats]:
    """The tensor's rows in GGUF's order, whole heads at a time where rope rotates them; raises for
    values that the format cannot hold."""
    together, count = source.head_dim or 1, tensor.dims[0]
    step = max(1, PIECE // (together * math.prod(tensor.dims[1:]))) * together
    in_order = ((first, min(first + step, count)) for first in range(0, count, step))
    for first, last in source.stretches or in_order:
        rows = tensor.rows(first, last)
        if source.added:
            rows = rows + np.float32(source.added)
        if source.through:
            rows = source.through(rows)
        if fault := misfit(rows, format, first):
            raise CheckpointError(f"{tensor.file}: tensor {source.name}: {fault}")
        rows = neighbours(rows, source.head_dim) if source.head_dim else rows
        yield rows.reshape(-1, rows.shape[-1]) if rows.ndim == 3 else rows


def _general(family: Family, folder: Path, outtype: str, name: str, weights: int) -> gw.Keys:
    found = {
        "architecture": gw.text(family.gguf),
        "type": gw.text("model"),
        "name": gw.text(name or _name(folder.resolve())),
        "size_label": gw.text(size_label(weights, 0, 0, 0)),
        "file_type": gw.u32(MIXES[outtype].file_type),
        "quantization_version": gw.u32(GGML_QUANT_VERSION),
    }
    return {f"general.{key}": value for key, value in found.items()}


def _name(folder: Path) -> str:
    """The folder's name, or the model's in Hugging Face's cache
    (models--ORG--NAME/snapshots/HASH)."""
    cached = folder.parent.name == "snapshots" and folder.parents[1].name.startswith("models--")
    return folder.parents[1].name.rpartition("--")[2] if cached else folder.name
