"""Copies of the rooms that a test may spoil, and programs run inside them."""

import os
import shutil
from pathlib import Path

from conformance.support.child import output_of

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("reference", "kernels")


def environment(folder: Path, *further: Path) -> dict[str, str]:
    """Variables with which Python finds the rooms in a folder, others in `further` ones, and keeps
    its cache there. It writes no bytecode, which it would take for a source that is edited to the
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
        """Replace the one place where `old` stands."""
        path = self.folder / file
        text = path.read_text()
        if text.count(old) != 1:
            raise ValueError(f"{file}: {old!r} stands {text.count(old)} times, wanted once")
        path.write_text(text.replace(old, new))

    def environment(self, *further: Path) -> dict[str, str]:
        """As of its folder."""
        return environment(self.folder, *further)

    def python(self, program: str, *arguments: str) -> str:
        """What the program prints that finds the rooms here."""
        return output_of(program, *arguments, cwd=self.folder, env=self.environment(), timeout=900)
