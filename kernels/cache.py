"""The cache folder, writable by its owner only: whoever writes there decides what code runs.

A folder that others can write has its mode tightened; one of another user, and a file that another
user could have written, are not read. Where nothing can be stored, a temporary folder serves this
process and its children instead, and is deleted at exit.
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

INSTEAD = "ASSAY_CACHE_INSTEAD"  # for children: the temporary folder, and the one it replaces
MEMORY = Path("/dev/shm")
PRIVATE = 0o700
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

_said: set[str] = set()


def cache_folder() -> Path:
    """The folder for certificates and compiled kernels; ASSAY_CACHE overrides it."""
    if chosen := os.environ.get("ASSAY_CACHE"):
        return Path(chosen)
    import platformdirs  # a bare machine whose GPU is checked may have no home

    return Path(platformdirs.user_cache_dir("assay", appauthor=False))


def say(line: str) -> None:
    """Print one plain line on stderr, once per message."""
    if line not in _said:
        _said.add(line)
        print(f"assay: {line}", file=sys.stderr, flush=True)


def read(name: str) -> bytes | None:
    """The contents stored under this name, if we wrote them; None if there are none."""
    return next(read_all(name), None)


def read_all(name: str) -> Iterator[bytes]:
    """The contents in the temporary folder, if there is one, followed by those in the cache
    folder."""
    for folder in filter(None, (_instead(), cache_folder())):
        if ours(folder) and (data := read_own(folder / name)) is not None:
            yield data


def place_of(name: str) -> Path:
    """The path stored under this name, for libraries that open files themselves."""
    folders = filter(None, (_instead(), cache_folder()))
    return next((f / name for f in folders if (f / name).exists()), cache_folder() / name)


def read_own(path: Path) -> bytes | None:
    """A file's bytes; None if it is missing or, with a message, if another user could have written
    it."""
    try:
        with os.fdopen(_opened(path), "rb") as file:
            return file.read()
    except OSError:
        return None


def keep(name: str, data: bytes) -> None:
    """Store this under the name atomically, here or else in the temporary folder."""
    path = ready() / name
    try:
        _write(path, data)
    except OSError as error:
        _write(_in_memory(error.strerror or str(error)) / name, data)


def ready() -> Path:
    """The folder to store things in, tested by writing there: an error is reported at once."""
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
    """Append to what is stored under the name, in one write, here or else in the temporary
    folder."""
    path = ready() / name
    try:
        append_to(path, data)
    except OSError as error:
        append_to(_in_memory(error.strerror or str(error)) / name, data)


def append_to(path: Path, data: bytes) -> None:
    """Append in one write to a file that only we can write; replace one that others could write."""
    path.parent.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
    if path.exists() and read_own(path) is None:
        path.unlink()
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab", 0) as file:
        if file.write(data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _opened(path: Path) -> int:
    found = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe without a reader
    status = os.fstat(found)
    if not stat.S_ISREG(status.st_mode) or _foreign(status) or status.st_mode & OTHERS_WRITE:
        os.close(found)
        say(f"{path} is not used: another user could have written it")
        raise PermissionError(path)
    return found


def made(folder: Path) -> None:
    """Create a folder within the cache folder, with access for us alone."""
    cache_folder().mkdir(mode=PRIVATE, parents=True, exist_ok=True)  # or the default mode applies
    folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)


def _foreign(status: os.stat_result) -> bool:
    return hasattr(os, "getuid") and status.st_uid != os.getuid()


def ours(folder: Path) -> bool:
    """Whether the folder exists and belongs to us; write access of others is removed."""
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
    """The temporary folder, if it has replaced the cache folder."""
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
