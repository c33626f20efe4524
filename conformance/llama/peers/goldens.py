"""What the peers answered once: data/golden/peers/NAME.npz for each checkpoint, and index.json.

`transformers.Q8_0` in a file holds that peer's logits, float32, after the last ROWS tokens; weights
are not kept, since `Checkpoint` makes them again. The index has the peers' versions, each
checkpoint's fields, the sha256 of its weights and of its file, and what llama.cpp told greedily and
what the held-out stories cost it, chunk by chunk.

mixes.json has the formats that llama.cpp gives each skeleton's matrices by its mixes, without an
importance matrix and, where that is another answer, with one. errors.json has what its quantisers
make of the rows of rows.py: weighed squared errors, by format and set. words.json has digests of
the ids that texts of conformance/support/tokenizer/words.py get, by the names of
`tokenizer.ggml.pre`. vocabularies.json has what it makes of the vocabularies of
conformance/support/tokenizer/small_vocabularies.py and of the real ones in its models/: digests
of ids and of pieces, and the tokens that end a text.
"""

import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from conformance.llama.peers.checkpoint import Checkpoint
from data.golden import FOLDER as GOLDEN
from data.golden import sha256
from reference.op import Array

FOLDER = GOLDEN / "peers"
ROWS = 8
EPOCH = (1980, 1, 1, 0, 0, 0)
MAKE = "python -m conformance.llama.peers.make"


def save(
    name: str, checkpoint: Checkpoint, answers: Mapping[str, Array], folder: Path = FOLDER
) -> dict[str, Any]:
    """Write a file whose bytes depend on the answers alone; give its entry in the index."""
    path = folder / f"{name}.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for question, logits in answers.items():
            entry = zipfile.ZipInfo(f"{question}.npy", EPOCH)
            with archive.open(entry, "w") as file:
                np.lib.format.write_array(file, logits[-ROWS:], allow_pickle=False)
    return {**describe(checkpoint), "sha256": sha256(path)}


def load(name: str, folder: Path = FOLDER) -> dict[tuple[str, str], Array]:
    """Logits [ROWS, vocab] by (peer, format of the weights)."""
    with np.load(folder / f"{name}.npz") as file:
        return {(question.rpartition(".")[0], question.rpartition(".")[2]): file[question]
                for question in file.files}  # fmt: skip


def describe(checkpoint: Checkpoint) -> dict[str, Any]:
    """A checkpoint as the index has it."""
    return {"checkpoint": asdict(checkpoint), "weights": checkpoint.digest()}


def index(folder: Path = FOLDER) -> dict[str, Any]:
    return read_json("index", folder)


def read_json(name: str, folder: Path = FOLDER) -> dict[str, Any]:
    """`index`, `mixes` or `errors`."""
    entries: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return entries


def save_json(name: str, entries: Mapping[str, Any], folder: Path = FOLDER) -> None:
    text = json.dumps(entries, indent=1, ensure_ascii=False) + "\n"
    (folder / f"{name}.json").write_text(text, encoding="utf-8")
