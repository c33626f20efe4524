"""When a room's sources were last changed, noted as their import begins: what is edited later has
another stamp, for no program can set it."""

from pathlib import Path


def stamps_beside(file: str) -> dict[str, int]:
    """Of each source in the folder of a package's `__init__.py`, by its path."""
    return {str(path): path.stat().st_ctime_ns for path in Path(file).parent.rglob("*.py")}
