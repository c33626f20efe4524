"""Copies of the rooms that a test may spoil, and programs run inside them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("reference", "kernels")


def python(folder: Path, environment: Mapping[str, str], program: str, *arguments: str) -> str:
    """What the program prints, run in this folder; an error there is one here."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=folder, env=environment, text=True, capture_output=True, timeout=900, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"exit {done.returncode}\n{done.stderr}")
    return done.stdout


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
        """Variables with which Python finds the rooms here, others in `further` folders, and keeps
        its cache here."""
        path = os.pathsep.join(map(str, (self.folder, *further)))
        own = {"PYTHONPATH": path, "ASSAY_CACHE": str(self.folder / "cache")}
        return {**os.environ, **own, "PYTHONDONTWRITEBYTECODE": "1"}

    def python(self, program: str, *arguments: str) -> str:
        """What the program prints that finds the rooms here."""
        return python(self.folder, self.environment(), program, *arguments)
