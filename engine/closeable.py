"""Base class of context managers that have a `close` method."""

from typing import Self


class Closeable:
    """Calls `close` on leaving a `with` block."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
