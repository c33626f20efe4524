"""Copies of the rooms that a test may edit, and programs run inside them."""

import os
import shutil
from pathlib import Path

from conformance.support.child import output_of

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("reference", "kernels")


def environment(folder: Path, *further: Path) -> dict[str, str]:
    """Environment variables with which Python finds the rooms in a folder, other modules in
    `further` ones, and has its cache there. It writes no bytecode, which would hide an edit of the
    same size within the same second."""
    path = os.pathsep.join(map(str, (folder, *further)))
    own = {"PYTHONPATH": path, "ASSAY_CACHE": str(folder / "cache")}
    return {**os.environ, **own, "PYTHONDONTWRITEBYTECODE": "1"}


class Copy:
    """A copy of reference/ and kernels/ with a cache of its own."""

    def __init__(self, folder: Path, origin: Path = ROOT) -> None:
        self.folder = folder
        for room in ROOMS:
            unwanted = shutil.ignore_patterns("__pycache__")
            shutil.copytree(origin / room, folder / room, ignore=unwanted)

    def edit(self, file: str, old: str, new: str) -> None:
        """Replace `old`, which occurs once."""
        path = self.folder / file
        text = path.read_text()
        if text.count(old) != 1:
            raise ValueError(f"{file}: {old!r} stands {text.count(old)} times, wanted once")
        path.write_text(text.replace(old, new))

    def environment(self, *further: Path) -> dict[str, str]:
        """The environment of its folder."""
        return environment(self.folder, *further)

    def python(self, program: str, *arguments: str) -> str:
        """The output of a program that imports the rooms of this copy."""
        return output_of(program, *arguments, cwd=self.folder, env=self.environment(), timeout=900)
