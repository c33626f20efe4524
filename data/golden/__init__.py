"""What each reference gave once: one .npz an op, and their hashes in index.json.

A file holds a few cases; `2.in.x` is input x of its third case, `2.out.y` the output y. Made again
by `python -m data.golden.make`; a difference then shows that a reference changed.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, Any]

FOLDER = Path(__file__).parent
INDEX = "index.json"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def index(folder: Path = FOLDER) -> dict[str, dict[str, Any]]:
    """For each op the sha256 of its file, and its cases as options of `assay op`."""
    entries: dict[str, dict[str, Any]] = json.loads((folder / INDEX).read_text())
    return entries


def cases(op: str, folder: Path = FOLDER) -> Iterator[tuple[Arrays, Arrays]]:
    """(inputs, outputs) of each golden case of an op."""
    with np.load(folder / f"{op}.npz") as file:
        found: dict[int, tuple[Arrays, Arrays]] = {}
        for name in file.files:
            number, side, argument = name.split(".")
            inputs, outputs = found.setdefault(int(number), ({}, {}))
            value = file[name]
            (inputs if side == "in" else outputs)[argument] = value if value.ndim else value.item()
    yield from (found[number] for number in sorted(found))
