"""Whatever is closed at the end of a `with` block."""

from typing import Self


class Closing:
    """A base of classes that have a `close`."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
