"""A checkpoint as a GGUF file: its folder, then our own tools, whom the peers judge."""

from pathlib import Path
from tempfile import TemporaryDirectory

from conformance.llama.peers.checkpoint import Checkpoint
from conformance.llama.peers.folder import write_folder
from engine.convert import OUTTYPES, convert
from engine.gguf_file import GGUFFile
from engine.quantise import Recipe, quantise


def export(checkpoint: Checkpoint, path: Path, format: str = "F32") -> Path:
    """Matrices in `format`, vectors in F32."""
    with TemporaryDirectory() as name:
        folder = write_folder(checkpoint, Path(name))
        if format in OUTTYPES:
            convert(folder, path, format)
        else:
            convert(folder, folder / "model.gguf", "F32")
            with GGUFFile(folder / "model.gguf") as file:
                quantise(file, path, Recipe(format, pure=True, output=format))
    return path
