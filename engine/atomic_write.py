"""Atomic file writes: write to a temporary file, rename it when it is complete."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from engine.errors import EngineError
from engine.file_errors import unwritable

PART_SUFFIX = ".part"


class OutputError(EngineError):
    """A file cannot be written; the message is one line with the path and the reason."""


@contextmanager
def atomic_write(out: Path, *, reads: Path | None = None) -> Iterator[BinaryIO]:
    """Yield a binary file that is renamed to `out` on success and removed on failure.

    Raises `OutputError` if `out` is not a regular file, is the file that the caller `reads`, or if
    the disk is full.
    """
    check(out, reads)
    part = out.with_name(out.name + PART_SUFFIX)
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(out)
    except OSError as error:
        if error.filename not in (None, str(part)):
            raise
        raise OutputError(unwritable(out, error)) from None
    finally:
        part.unlink(missing_ok=True)


def check(out: Path, reads: Path | None = None) -> None:
    """Raise `OutputError`, before any work is done, where `atomic_write` would."""
    if not out.name or (out.exists() and not out.is_file()):  # a rename would replace a device
        raise OutputError(f"{out}: cannot be written: it is there and is not a file")
    if not out.parent.is_dir():
        raise OutputError(f"{out}: cannot be written: there is no folder {out.parent}")
    if not os.access(out.parent, os.W_OK):
        raise OutputError(f"{out}: cannot be written: {out.parent} is read-only")
    if reads is not None and out.exists() and out.samefile(reads):
        raise OutputError(f"{out}: cannot be written: it is the file that is read")
