"""A session on disk: the tokens held, their cells and the sampler, to go on from bit for bit.

File: the magic line, a JSON header of `header_bytes` (little-endian u64 before it), the rows of
every cache for the tokens in order, and the sha256 of all before it. Written aside, flushed to disk
and renamed, so that a crash leaves the old file as it was.
"""

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from engine.aside import written_aside
from engine.engine import Engine
from engine.gguf_file import GGUFFile

MAGIC = b"assay session 1\n"
DIGEST = 32


class SessionError(ValueError):
    """A session file that cannot be gone on from: one line that says why."""


def save(engine: Engine, path: str | Path) -> None:
    """Write what the engine holds of sequence 0."""
    path = Path(path)
    engine.settle()
    cells = engine.model.cells.of(0)[: len(engine.text.held)]  # an evaluation cut off has left more
    header = json.dumps(
        {
            "model": model_digest(engine.model.file),
            "kv_format": engine.model.options.kv_format,
            "tokens": engine.text.held,
            "drawn": engine.text.drawn,
            "sampler": engine.sampler_state,
        }
    ).encode()
    checksum = hashlib.sha256()
    with written_aside(path) as aside:
        for part in (MAGIC, struct.pack("<Q", len(header)), header):
            aside.write(part)
            checksum.update(part)
        for cache in engine.model.caches.values():
            rows = cache[cells].tobytes()
            aside.write(rows)
            checksum.update(rows)
        aside.write(checksum.digest())


def restore(engine: Engine, path: str | Path) -> list[int]:
    """Let the engine hold what the file does; gives its tokens, the last one drawn included.

    On an error nothing changes.
    """
    path = Path(path)
    if not path.is_file():
        raise SessionError(f"{path}: this is not a file")
    data = path.read_bytes()
    header, body = _opened(data, path)
    model = engine.model
    if header["model"] != model_digest(model.file):
        raise SessionError(f"{path}: this session is of another model")
    if header["kv_format"] != model.options.kv_format:
        raise SessionError(
            f"{path}: its cache is in {header['kv_format']}, the engine's in"
            f" {model.options.kv_format}"
        )
    tokens: list[int] = header["tokens"]
    if len(tokens) > model.cells.capacity:
        raise SessionError(
            f"{path}: it holds {len(tokens)} tokens, the context {model.cells.capacity}"
        )
    expected = sum(len(tokens) * cache.shape[1] for cache in model.caches.values())
    if len(body) != expected:
        raise SessionError(f"{path}: {len(body)} bytes of cells, expected {expected}")
    engine.reset()
    cells = model.cells.place(range(len(tokens)), [(0,)] * len(tokens))
    start = 0
    for cache in model.caches.values():
        size = len(tokens) * cache.shape[1]
        rows = np.frombuffer(body, np.uint8, size, start)
        cache[cells] = rows.reshape(len(tokens), cache.shape[1])
        start += size
    engine.text.held, engine.text.drawn = tokens, header["drawn"]
    engine.sampler_state = header["sampler"]
    return engine.text.held + engine.text.drawn


def _opened(data: bytes, path: Path) -> tuple[dict[str, Any], bytes]:
    """The header and the cells' bytes of an undamaged file."""
    start = len(MAGIC) + 8
    if not data.startswith(MAGIC):
        raise SessionError(f"{path}: this is no session file")
    if len(data) < start + DIGEST or hashlib.sha256(data[:-DIGEST]).digest() != data[-DIGEST:]:
        raise SessionError(f"{path}: the session is truncated or damaged")
    (length,) = struct.unpack_from("<Q", data, len(MAGIC))
    return json.loads(data[start : start + length]), data[start + length : -DIGEST]


def model_digest(file: GGUFFile) -> str:
    """sha256 over the file's tensors: names, places, and the first and last bytes of each."""
    digest = hashlib.sha256(str(file.size).encode())
    for name, info in file.tensors.items():
        if info.picked:  # of a tensor that is here as well
            continue
        digest.update(f"{name} {info.type_name} {info.dims} {info.offset}".encode())
        flat = file.tensor(name).reshape(-1)
        digest.update(flat[:256].tobytes())
        digest.update(flat[-256:].tobytes())
    return digest.hexdigest()
