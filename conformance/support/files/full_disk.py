"""A full disk, as a program sees it."""

import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conformance.support.child import run


@contextmanager
def full_after(n_bytes: int) -> Iterator[None]:
    """No file of this process can grow beyond `n_bytes`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def small_disk(folder: Path, n_bytes: int) -> Iterator[None]:
    """A file system of `n_bytes` in `folder`; if mounting is not permitted, no file of this process
    can grow beyond them."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={n_bytes}", "tmpfs", str(folder)]
    if not shutil.which("mount") or run(*mount).returncode:
        with full_after(n_bytes):
            yield
        return
    try:
        yield
    finally:
        run("umount", folder, check=True)
