"""A checkpoint as a GGUF file, through its folder and `assay convert`, whom the peers judge."""

from pathlib import Path
from tempfile import TemporaryDirectory

from conformance.llama.peers.checkpoint import Checkpoint
from conformance.llama.peers.folder import write_folder
from engine.convert import convert


def export(checkpoint: Checkpoint, path: Path, format: str = "F32") -> Path:
    """Matrices in `format`, vectors in F32."""
    with TemporaryDirectory() as folder:
        convert(write_folder(checkpoint, Path(folder)), path, format)
    return path
