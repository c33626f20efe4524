"""The embedded models in other formats, made once."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

from engine.embedded import resolve
from engine.gguf.file import GGUFFile
from engine.quantise import Recipe, quantise

FORMATS = ("F32", "F16", "Q8_0", "Q4_0", "Q4_K")
TYPES = {"Q4_K": "Q4_K_M"}  # llama.cpp's mix of which a format is the main one


def stories(folder: Path) -> Callable[[str, str], Path]:
    """A function of a model's name and a format: the file, all matrices in that format."""

    @cache
    def made(name: str, format: str) -> Path:
        path = folder / f"{name}-{format}.gguf"
        with GGUFFile(resolve(name)) as file:
            quantise(file, path, Recipe(TYPES.get(format, format), pure=True, requantise=True))
        return path

    return made
