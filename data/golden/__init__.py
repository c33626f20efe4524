"""Golden vectors, outputs that each reference gave once: an .npz an op, hashes in index.json.

A file has a few cases; `2.in.x` is input x of its third case, `2.out.y` the output y. They are
written by `python -m data.golden.make`; a difference means that a reference has changed.
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
