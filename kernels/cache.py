"""The cache folder, which is ours alone: who writes there decides what runs.

A folder that others can write is closed to them, one of another user is not looked at, and neither
is a file that another could have written. Where nothing can be kept, a folder in memory takes its
place, for this process and its children; it goes when the process ends.
"""

import atexit
import errno
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

INSTEAD = "ASSAY_CACHE_INSTEAD"  # for children: a folder, and the one whose place it takes
MEMORY = Path("/dev/shm")
PRIVATE = 0o700
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

_said: set[str] = set()


def cache_folder() -> Path:
    """Where certificates and compiled kernels are to be kept; ASSAY_CACHE overrides it."""
    if chosen := os.environ.get("ASSAY_CACHE"):
        return Path(chosen)
    import platformdirs  # a bare machine whose GPU is checked may have none

    return Path(platformdirs.user_cache_dir("assay", appauthor=False))


def say(line: str) -> None:
    """One plain line on stderr, once."""
    if line not in _said:
        _said.add(line)
        print(f"assay: {line}", file=sys.stderr, flush=True)


def read(name: str) -> bytes | None:
    """What is kept under this name, if we wrote it; None if nothing is."""
    return next(read_all(name), None)


def read_all(name: str) -> Iterator[bytes]:
    """The same of the folder in memory, if there is one, and then of the cache folder."""
    for folder in filter(None, (_instead(), cache_folder())):
        if ours(folder) and (data := read_own(folder / name)) is not None:
            yield data


def place_of(name: str) -> Path:
    """Where what is kept under this name lies, for libraries that open files themselves."""
    folders = filter(None, (_instead(), cache_folder()))
    return next((f / name for f in folders if (f / name).exists()), cache_folder() / name)


def read_own(path: Path) -> bytes | None:
    """A file's bytes; None where there is none, or, with a line that says so, one that another
    user could have written."""
    try:
        with os.fdopen(_opened(path), "rb") as file:
            return file.read()
    except OSError:
        return None


def keep(name: str, data: bytes) -> None:
    """Keep this under the name: whole or not at all, here or else in memory."""
    path = ready() / name
    try:
        _write(path, data)
    except OSError as error:
        _write(_in_memory(error.strerror or str(error)) / name, data)


def ready() -> Path:
    """The folder to keep things in, tried by writing there: said at once if it cannot be."""
    if found := _instead():
        return found
    folder = cache_folder()
    try:
        folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        if not ours(folder):
            return _in_memory("it is not ours alone")
        if folder not in _tried:
            with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
                file.write(bytes(4096))
            _tried.add(folder)
    except OSError as error:
        return _in_memory(error.strerror or str(error))
    return folder


_tried: set[Path] = set()


def append(name: str, data: bytes) -> None:
    """Append to what is kept under the name, in one write, here or else in memory."""
    path = ready() / name
    try:
        append_to(path, data)
    except OSError as error:
        append_to(_in_memory(error.strerror or str(error)) / name, data)


def append_to(path: Path, data: bytes) -> None:
    """Append in one write, to a file that only we can write; one that others could is replaced."""
    path.parent.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
    if path.exists() and read_own(path) is None:
        path.unlink()
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab", 0) as file:
        if file.write(data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _opened(path: Path) -> int:
    found = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe has nobody at its other end
    status = os.fstat(found)
    if not stat.S_ISREG(status.st_mode) or _foreign(status) or status.st_mode & OTHERS_WRITE:
        os.close(found)
        say(f"{path} is not used: another user could have written it")
        raise PermissionError(path)
    return found


def made(folder: Path) -> None:
    """Make a folder within the cache folder, ours alone."""
    cache_folder().mkdir(mode=PRIVATE, parents=True, exist_ok=True)  # or its mode is the usual
    folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)


def _foreign(status: os.stat_result) -> bool:
    return hasattr(os, "getuid") and status.st_uid != os.getuid()


def ours(folder: Path) -> bool:
    """Whether the folder is there and belongs to us; others are kept from writing there."""
    try:
        status = folder.stat()
    except OSError:
        return False
    if _foreign(status):
        say(f"{folder} is not used: it belongs to another user")
        return False
    if status.st_mode & OTHERS_WRITE:
        try:
            folder.chmod(PRIVATE)
        except OSError as error:
            say(f"{folder} is not used: other users can write there ({error.strerror})")
            return False
        say(f"{folder} could be written by other users: it is ours alone now")
    return True


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=PRIVATE, exist_ok=True)
    if not ours(path.parent):
        raise PermissionError(f"{path.parent} belongs to another user")
    number, aside = tempfile.mkstemp(dir=path.parent, suffix=".part")
    try:
        with os.fdopen(number, "wb") as file:
            file.write(data)
        Path(aside).replace(path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


def _instead() -> Path | None:
    """The folder in memory, if one has taken the cache folder's place."""
    folder, _, configured = os.environ.get(INSTEAD, "").partition(os.pathsep)
    if not folder or configured != str(cache_folder()) or not ours(Path(folder)):
        return None
    return Path(folder)


def _in_memory(fault: str) -> Path:
    configured = cache_folder()
    say(
        f"nothing can be kept in {configured}: {fault}; what is compiled and tried now is gone when"
        " this ends (ASSAY_CACHE names another folder)"
    )
    place = MEMORY if os.access(MEMORY, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="assay-", dir=place))
    os.environ[INSTEAD] = f"{folder}{os.pathsep}{configured}"
    atexit.register(_removed, folder, os.getpid())
    return folder


def _removed(folder: Path, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
