"""A weights file opened for reads that bypass the page cache (O_DIRECT)."""

import os
from contextlib import suppress
from io import FileIO
from pathlib import Path

from engine.closeable import Closeable
from engine.file_errors import shown_path, unreadable
from engine.gguf.file import is_unchanged, stamp_of
from kernels.cpu.formats.packing import aligned
from kernels.cpu.runtime.io_pool import File

ALIGNMENTS = (512, 4096)  # disk sector sizes
PAGE = 4096
O_DIRECT = getattr(os, "O_DIRECT", 0)


class DirectFile(Closeable):
    """A file that an `IOPool` reads with O_DIRECT, or through the page cache where that is not
    possible.

    file     for an `IOPool`: its descriptor and the alignment of reads stamp    size, modification
    times and inode when it was opened note     why the page cache is used after all, or None; pages
    are dropped after reading then

    Given an earlier stamp of the path, the file must still be the same. Raises OSError where it
    cannot be read or is another file.
    """

    def __init__(self, path: str | os.PathLike[str], stamp: tuple[int, ...] | None = None) -> None:
        self.path, self.note = Path(path), None
        name = shown_path(self.path)
        try:
            self._source, alignment = _open(self.path)
        except OSError as error:
            raise OSError(unreadable(self.path, error)) from None
        if not alignment:
            self.note = f"{name}: its file system reads through the page cache only"
        self.file = File(name, self._source.fileno(), alignment or 1, dropped=not alignment)
        self.stamp = stamp or stamp_of(self._source)
        try:
            self.check()
        except BaseException:
            self.close()
            raise

    def check(self) -> None:
        """Raise OSError if the file has changed since it was opened: reads may mix both
        contents."""
        if not is_unchanged(self._source, self.stamp):
            raise OSError(f"{self.file.name}: it changed while it was read")

    def close(self) -> None:
        """Close it; nobody may be reading any more, since the descriptor may be reused."""
        self._source.close()


def _open(path: Path) -> tuple[FileIO, int]:
    """The file, and the alignment of direct reads; 0 where they are not possible."""
    if path.exists() and not path.is_file():  # opening a pipe would wait for its writer
        raise OSError("this is not a file")
    with suppress(OSError):  # some refuse on open, some on read
        source = FileIO(path, opener=lambda p, flags: os.open(p, flags | O_DIRECT))
        for alignment in ALIGNMENTS if O_DIRECT else ():
            if _accepts(source, alignment):
                return source, alignment
        source.close()
    source = FileIO(path)
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no readahead
    return source, 0


def _accepts(source: FileIO, alignment: int) -> bool:
    """Whether file offsets and addresses may be odd multiples of so many bytes."""
    memory = aligned(2 * PAGE, PAGE)[alignment % PAGE :][:alignment]
    try:
        for offset in (0, alignment):
            os.preadv(source.fileno(), [memory.data], offset)
    except OSError:
        return False
    return True
