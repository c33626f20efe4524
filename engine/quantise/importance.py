"""Importance matrices: how much each column of a weight matters, as llama.cpp keeps them.

A column of a weight meets one element of every activation that the layer sees; it matters as the
mean of that element's square. Two file formats:

    GGUF      general.type "imatrix"; for each weight NAME tensors NAME.in_sum2 F32 [1, hidden], of
              sums of squares, and NAME.counts F32 [1, 1], of how many tokens; of
              experts [experts, hidden] and [experts, 1], whose sums and count are 0 where no
              token was
    legacy    i32 entries; each i32 length, name, i32 calls, i32 hidden, f32 x hidden (mean times
              calls); then perhaps i32 chunks, i32 length, the text's name
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import EngineError
from engine.file_errors import shown_path, unreadable
from engine.gguf.cursor import ValueType
from engine.gguf.file import GGUFFile
from engine.gguf.writer import NewTensor, i32, text, texts, u32, write_gguf
from engine.passes.observe import Observed

SUMS, COUNTS = ".in_sum2", ".counts"
LEAST = np.float32(2**-30)
LONGEST = 2**24  # columns of a legacy file's entry

Floats = np.ndarray[Any, np.dtype[np.float32]]


class ImportanceError(EngineError):
    """A file that is no importance matrix, or not of this model, in one plain line."""


@dataclass(frozen=True, slots=True)
class Importance:
    """float32 [hidden] by weight, or [experts * hidden], means of squares; the name of the text,
    and its number of chunks of tokens."""

    columns: Mapping[str, Floats]
    source: str
    texts: tuple[str, ...] = ()
    chunks: int = 0

    def of(self, name: str, hidden: int, experts: int = 1) -> Floats | None:
        """The importance of a weight's columns, from LEAST to 1, float32 [experts, hidden]; None
        without statistics for it. Raises `ImportanceError`.

        A column whose inputs were zero may matter in another text, so none counts for nothing; and
        since values are scaled by a power of two, no product of weights overflows in a fit.
        """
        found = self.columns.get(name)
        if found is None:
            return None
        if len(found) != experts * hidden:
            raise ImportanceError(
                f"{self.source}: {name} has {len(found)} columns there, and {experts * hidden}"
                " in the model"
            )
        found = found.reshape(experts, hidden)
        most = found.max(axis=1, initial=0, keepdims=True)
        scaled = np.maximum(np.ldexp(found, -np.frexp(most)[1]), LEAST)
        return np.asarray(np.where(most == 0, np.float32(1), scaled))

    def provenance(self) -> dict[str, tuple[ValueType, Any]]:
        """Keys of a quantised model, as llama.cpp writes them."""
        return {
            "quantize.imatrix.file": text(self.source),
            "quantize.imatrix.dataset": text(", ".join(self.texts)),
            "quantize.imatrix.entries_count": i32(len(self.columns)),
            "quantize.imatrix.chunks_count": i32(self.chunks),
        }


def write(
    out: Path,
    found: Mapping[str, Observed],
    tokens: int,
    texts_read: tuple[str, ...],
    chunks: int,
    chunk_tokens: int,
) -> None:
    """Write the statistics of weights, by name, over so many tokens (experts have their own
    counts), as a GGUF file."""
    keys = {
        "general.type": text("imatrix"),
        "imatrix.datasets": texts(texts_read),
        "imatrix.chunk_count": u32(chunks),
        "imatrix.chunk_size": u32(chunk_tokens),
    }
    tensors, data = [], []
    for name in sorted(found):
        counts = found[name].counts
        counts = np.array([tokens]) if counts is None else counts
        sums = found[name].sums.reshape(len(counts), -1)
        tensors.append(NewTensor(name + SUMS, "F32", sums.shape))
        tensors.append(NewTensor(name + COUNTS, "F32", (len(counts), 1)))
        data += [sums.astype(np.float32), counts.astype(np.float32)]
    write_gguf(out, keys, tensors, (array.reshape(-1).view(np.uint8) for array in data))


def unmet(found: Mapping[str, Observed]) -> str:
    """Weights of which some experts received no token, in words; "" if there are none."""
    lacking = [
        f"{int((met.counts == 0).sum())} of {len(met.counts)} in {name}"
        for name, met in sorted(found.items())
        if met.counts is not None and not met.counts.all()
    ]
    others = len(lacking) - 1
    more = f" and in {others} other tensor{'s' * (others > 1)}" if others > 0 else ""
    if not lacking:
        return ""
    return (
        f"no token came to some experts, {lacking[0]}{more}: all their columns will count alike;"
        " a longer text may reach them"
    )


def read(path: Path) -> Importance:
    """Read either format. Raises `ImportanceError` or `GGUFError`."""
    try:
        with path.open("rb") as file:
            is_gguf = file.read(4) == b"GGUF"
    except OSError as error:
        raise ImportanceError(unreadable(path, error)) from None
    found = _read_gguf(path) if is_gguf else _read_legacy(path)
    if not found.columns:
        raise ImportanceError(f"{shown_path(path)}: there is nothing in this importance matrix")
    for name, columns in found.columns.items():
        if not (np.isfinite(columns).all() and (columns >= 0).all()):
            raise ImportanceError(f"{shown_path(path)}: {name} has what is no mean of squares")
    return found


def _read_gguf(path: Path) -> Importance:
    with GGUFFile(path) as file:
        if file.metadata.get("general.type") != "imatrix":
            raise ImportanceError(f"{shown_path(path)}: this GGUF file is no importance matrix")
        columns = {}
        for name, tensor in file.tensors.items():
            if not name.endswith(SUMS):
                continue
            weight = name.removesuffix(SUMS)
            counts = file.tensors.get(weight + COUNTS)
            if counts is None or {tensor.type_name, counts.type_name} != {"F32"}:
                raise ImportanceError(f"{shown_path(path)}: {weight} has no counts, or not in F32")
            sums = file.tensor(name).view(np.float32)
            many = np.maximum(file.tensor(counts.name).view(np.float32).reshape(-1, 1), 1)
            if len(many) != len(sums.reshape(-1, sums.shape[-1])):
                raise ImportanceError(f"{shown_path(path)}: {weight} has other counts than sums")
            columns[weight] = (sums / many).astype(np.float32).reshape(-1)
        datasets = file.metadata.get("imatrix.datasets", [])
        chunks = file.metadata.get("imatrix.chunk_count", 0)
    return Importance(columns, path.name, tuple(map(str, datasets)), chunks)


def _read_legacy(path: Path) -> Importance:
    columns: dict[str, Floats] = {}
    try:
        with path.open("rb") as file:

            def number() -> int:
                return int(struct.unpack("<i", file.read(4))[0])

            def taken(count: int, size: int = 1) -> bytes:
                data = file.read(size * count) if 0 <= count <= LONGEST else b""
                if len(data) != size * count:
                    raise struct.error("a length is beyond the end")
                return data

            for _ in range(number()):
                name = taken(number()).decode()
                calls = max(number(), 1)
                columns[name] = np.frombuffer(taken(number(), 4), np.float32) / np.float32(calls)
            more = bool(file.peek(1))
            chunks = number() if more else 0
            dataset = (taken(number()).decode(),) if more else ()
    except (struct.error, UnicodeDecodeError):
        raise ImportanceError(
            f"{shown_path(path)}: this is no importance matrix, or it was cut short"
        ) from None
    return Importance(columns, path.name, dataset, chunks)
