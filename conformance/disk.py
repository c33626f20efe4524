"""A disk that is full, as a program sees it."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def full_after(n_bytes: int) -> Iterator[None]:
    """No file of this process can grow beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
