"""Files that the system does not let be read or written, as plain lines: which one, and why."""

from pathlib import Path


def shown_path(path: Path) -> str:
    """The path as it is, or quoted if it would not stay on one line."""
    return str(path) if str(path).isprintable() else repr(str(path))


def reason(error: OSError) -> str:
    """In small letters, as it stands behind a colon."""
    return (error.strerror or str(error)).lower()


def unreadable(path: Path, error: OSError) -> str:
    return f"{shown_path(path)}: cannot be read: {reason(error)}"


def unwritable(path: Path, error: OSError) -> str:
    return f"{shown_path(path)}: cannot be written: {reason(error)}"
