"""Files that shares read: by a path shared with the worker, or sent once by digest."""

import asyncio
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from kernels.cache import cache_folder, made, ours

PART = 2**24  # bytes sent at a time, and held in memory

Stamp = tuple[int, int, int]  # for a file that was not modified meanwhile

_places: dict[str, tuple[Path, Stamp]] = {}


@dataclass(frozen=True, slots=True)
class Named:
    """A file by its content: `digest` is sha256; `path` is the sender's."""

    path: Path
    digest: str
    size: int

    @classmethod
    def of(cls, path: Path) -> "Named":
        path = path.resolve()
        return cls(path, digest_of(path), path.stat().st_size)

    @property
    def place(self) -> Path:
        """The path in this process, once `has` found it."""
        return _places[self.digest][0]

    @property
    def kept(self) -> Path:
        """The path on machines that do not share the original; the file's name stays, since results
        mention it."""
        return cache_folder() / "fleet" / self.digest / self.path.name


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def has(file: Named) -> bool:
    """Whether this worker can read the file, by its path or because it was sent before; off the
    worker's event loop, since large files take long to hash."""
    return await asyncio.to_thread(_has, file)


def _has(file: Named) -> bool:
    for path in (file.path, file.kept):
        try:
            stamp = _stamp(path)
            known = _places.get(file.digest) == (path, stamp)
            if known or (stamp[0] == file.size and digest_of(path) == file.digest):
                _places[file.digest] = path, stamp
                return True
        except OSError:
            continue  # another machine's path, or one that we may not read
    return False


def _stamp(path: Path) -> Stamp:
    found = path.stat()
    return found.st_size, found.st_mtime_ns, found.st_ino


async def keep(file: Named, offset: int, data: bytes) -> str:
    """Write a received part of a file; returns why that failed, or ""."""
    return await asyncio.to_thread(_keep, file, offset, data)


def _keep(file: Named, offset: int, data: bytes) -> str:
    part = file.kept.with_suffix(f".{os.getpid()}.part")
    try:
        made(part.parent)
        if not ours(part.parent):
            return f"{part.parent} belongs to another user"
        with part.open("wb" if offset == 0 else "ab") as written:
            written.write(data)
        if offset + len(data) == file.size:
            whole = digest_of(part) == file.digest
            part.replace(file.kept) if whole else part.unlink()
            return "" if whole else f"{file.path.name} came damaged"
    except OSError as error:
        return f"{error.filename or part}: {error.strerror}"
    return ""
