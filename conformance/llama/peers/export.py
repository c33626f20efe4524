"""A checkpoint as a GGUF file: its folder, then `assay convert`, whom the peers judge."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import gguf
import numpy as np

from conformance.llama.peers.checkpoint import Checkpoint
from conformance.llama.peers.folder import write_folder
from conformance.support.models.small_models import written
from engine.convert import OUTTYPES, convert
from reference.formats import FORMATS
from reference.op import Array


def export(checkpoint: Checkpoint, path: Path, format: str = "F32") -> Path:
    """Matrices in `format`, vectors in F32. Matrices of read-only formats are others as large."""
    with TemporaryDirectory() as name:
        folder = write_folder(checkpoint, Path(name))
        if format in OUTTYPES:
            convert(folder, path, format)
            return path
        convert(folder, folder / "model.gguf", "F32")
        rng = np.random.default_rng(checkpoint.seed)
        return copied(
            folder / "model.gguf", path, format, lambda rows: FORMATS[format].random_like(rows, rng)
        )


def copied(source: Path, path: Path, format: str, encode: Callable[[Array], Array]) -> Path:
    """The same model with every matrix encoded anew, by the gguf package alone."""
    reader, writer = gguf.GGUFReader(source), gguf.GGUFWriter(path, "llama")
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != gguf.Keys.General.ARCHITECTURE:
            writer.add_key_value(key, field.contents(), *field.types[:2])
    for tensor in reader.tensors:
        rows = gguf.dequantize(tensor.data, tensor.tensor_type)
        if rows.ndim == 1:
            writer.add_tensor(tensor.name, rows)
        else:
            kind = gguf.GGMLQuantizationType[format]
            writer.add_tensor(tensor.name, encode(rows), raw_dtype=kind)
    return written(writer, path)
