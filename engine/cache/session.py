"""Sessions on disk: tokens, KV cache and sampler state, to continue bit-identically.

File: the magic line, the header's length (little-endian u64), a JSON header, the rows of every
cache for the tokens in order, in a recurrent model the states of some tokens, and the sha256 of
everything before it. Written atomically.
"""

import hashlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.atomic_write import atomic_write
from engine.errors import EngineError
from engine.gguf.file import GGUFFile
from engine.gpu.memory import DeviceRows
from engine.model import Model, block_index
from reference.op import Array

if TYPE_CHECKING:
    from engine.engine import Engine

MAGIC = b"assay session 1\n"
DIGEST = 32


class SessionError(EngineError):
    """A session file that cannot be restored; one line with the reason."""


def save(engine: "Engine", path: str | Path) -> None:
    """Save sequence 0."""
    path = Path(path)
    engine.drop_drafts()
    cells = engine.model.cells.list_of(0)
    # an interrupted evaluation leaves more cells
    cells = cells[engine.model.cells.positions[cells] < len(engine.text.held)]
    states = engine.model.cells.states
    stateful = [t for t, cell in enumerate(cells.tolist()) if states and cell in states]
    slots = np.array([states[int(cells[t])] for t in stateful if states], np.int64)
    fields = engine.model.method.session_fields(cells)
    header = json.dumps(
        {
            "model": model_digest(engine.model.file),
            "kv_format": _format(engine.model),
            "rope": _rope(engine.model),
            **fields,
            **({"cells": len(cells)} if fields else {}),
            "tokens": engine.text.held,
            "drawn": engine.text.drawn,
            "sampler": engine.sampler_state,
            **({"states": stateful} if states else {}),
        }
    ).encode()
    checksum = hashlib.sha256()
    with atomic_write(path) as file:
        for part in (MAGIC, struct.pack("<Q", len(header)), header):
            file.write(part)
            checksum.update(part)
        for rows, numbers in _saved_rows(engine.model, cells, slots, fields):
            part = rows[numbers].tobytes()
            file.write(part)
            checksum.update(part)
        file.write(checksum.digest())


def restore(engine: "Engine", path: str | Path) -> list[int]:
    """Restore a session; returns its tokens, the last sampled one included.

    On error nothing changes.
    """
    path = Path(path)
    if not path.is_file():
        raise SessionError(f"{path}: this is not a file")
    data = path.read_bytes()
    header, body = _verified(data, path)
    model = engine.model
    if header["model"] != model_digest(model.file):
        raise SessionError(f"{path}: this session is of another model")
    if header["kv_format"] != _format(model):
        raise SessionError(
            f"{path}: its cache is in {header['kv_format']}, the engine's in {_format(model)}"
        )
    if header.get("rope", "") != _rope(model):
        raise SessionError(f"{path}: its keys are rotated for another context length")
    fields = model.method.session_fields(np.zeros(0, np.int32))
    ours, theirs = fields.get("kv_policy"), header.get("kv_policy")
    if ours != theirs:
        raise SessionError(
            f"{path}: its cells were kept by the kv_policy {theirs or 'none'}, the engine's is"
            f" {ours or 'none'}"
        )
    ours, theirs = (h.get("prompt_attention", "none") for h in (fields, header))
    if ours != theirs:
        raise SessionError(
            f"{path}: its prompts were read by the prompt_attention {theirs}, the engine's is"
            f" {ours}"
        )
    tokens: list[int] = header["tokens"]
    count = header.get("cells", len(tokens))
    if count > model.cells.capacity:
        raise SessionError(f"{path}: it holds {count} tokens, the context {model.cells.capacity}")
    stateful: list[int] = header.get("states", [])
    kept = _saved_rows(model, np.arange(count), np.array(stateful), header)
    expected = sum(len(numbers) * rows.shape[1] for rows, numbers in kept)
    if len(body) != expected:
        raise SessionError(f"{path}: {len(body)} bytes of cells, expected {expected}")
    engine.reset()
    cells = model.cells.place(range(len(tokens) - count, len(tokens)), [(0,)] * count)
    model.method.restore(cells, header)
    states, start = model.cells.states, 0
    # if there are fewer slots, the last tokens' states replace earlier ones
    slots = np.array([states.allocate(int(cells[t])) for t in stateful if states], np.int64)
    for rows, numbers in _saved_rows(model, cells, slots, header):
        size = len(numbers) * rows.shape[1]
        part = np.frombuffer(body, np.uint8, size, start)
        rows[numbers] = part.reshape(len(numbers), rows.shape[1])
        start += size
    engine.text.held, engine.text.drawn = tokens, header["drawn"]
    engine.sampler_state = header["sampler"]
    return engine.text.held + engine.text.drawn


def _saved_rows(
    model: Model, cells: Array, slots: Array, fields: Mapping[str, Any]
) -> list[tuple[Array | DeviceRows, Array]]:
    """The caches and states, uint8 [rows, bytes], each with the rows that a session saves."""
    method = model.method
    found: list[tuple[Array | DeviceRows, Array]] = [
        (cache, method.rows_of(cells, block_index(name), fields))
        for name, cache in model.caches.items()
    ]
    found += [(pages, method.pages_of(cells, fields)) for pages in model.pages.values()]
    for states in model.states.values():
        if not isinstance(states, DeviceRows):
            states = states.reshape(len(states), -1).view(np.uint8)
        found.append((states, slots))
    return found


def _format(model: Model) -> str:
    """The KV cache format, with the residual length if it is packed."""
    residual = f":residual={model.options.kv_residual}" if model.options.packs_kv else ""
    return model.options.kv_format + residual


def _rope(model: Model) -> str:
    """The set of RoPE factors in use; empty if the model has only one."""
    two = "rope_factors_long.weight" in model.file.tensors
    return model.config.rope_factor_set(model.cells.capacity) if two else ""


def _verified(data: bytes, path: Path) -> tuple[dict[str, Any], bytes]:
    """Verify a session file; returns its header and the bytes of its cells."""
    start = len(MAGIC) + 8
    if not data.startswith(MAGIC):
        raise SessionError(f"{path}: not a session file")
    if len(data) < start + DIGEST or hashlib.sha256(data[:-DIGEST]).digest() != data[-DIGEST:]:
        raise SessionError(f"{path}: the session is truncated or damaged")
    (length,) = struct.unpack_from("<Q", data, len(MAGIC))
    return json.loads(data[start : start + length]), data[start + length : -DIGEST]


def model_digest(file: GGUFFile) -> str:
    """sha256 over the file's tensors: names, offsets, and the first and last bytes of each."""
    digest = hashlib.sha256(str(file.size).encode())
    for name, info in file.tensors.items():
        if info.picked or info.apart:  # part of another tensor
            continue
        digest.update(f"{name} {info.type_name} {info.dims} {info.offset}".encode())
        flat = file.tensor(name).reshape(-1)
        digest.update(flat[:256].tobytes())
        digest.update(flat[-256:].tobytes())
    return digest.hexdigest()
