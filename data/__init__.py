"""Data: embedded models, golden vectors, shapes, results, and how each was made."""

from importlib.resources import files
from pathlib import Path


def path(name: str) -> Path:
    """The data file `name`, such as "models/story-f16.gguf"."""
    return Path(str(files(__name__).joinpath(name)))
