"""When a room's sources were last changed, noted as their import begins: what is edited later has
another stamp, for no program can set it."""

from collections.abc import Iterable
from pathlib import Path


def stamps_of(folders: Iterable[str]) -> dict[str, int]:
    """Of each source in a package's folders, by its path."""
    files = [path for folder in folders for path in Path(folder).rglob("*.py")]
    return {str(path): path.stat().st_ctime_ns for path in files}
