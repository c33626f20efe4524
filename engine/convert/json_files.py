"""Reads JSON files of a checkpoint's folder, with errors in one line."""

import json
from pathlib import Path
from typing import Any

from engine.errors import EngineError
from engine.file_errors import unreadable

LFS = b"version https://git-lfs"  # beginning of a Git LFS pointer


class CheckpointError(EngineError):
    """A folder that cannot be converted; the message is one plain line: file and fault."""


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; CheckpointError where there is none."""
    try:
        data = path.read_bytes()
        found = json.loads(data)
    except OSError as error:
        raise CheckpointError(unreadable(path, error)) from None
    except (ValueError, RecursionError) as error:
        if data.startswith(LFS):
            raise CheckpointError(pointer(path)) from None
        raise CheckpointError(f"{path}: this is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: want a JSON object, got {type(found).__name__}")
    return found


def pointer(path: Path) -> str:
    """The complaint about a Git LFS pointer in a file's place."""
    return f"{path}: a Git LFS pointer, for which `git lfs pull` gets the file"
