"""Messages for files that cannot be read or written: path and reason, in one line."""

from pathlib import Path


def shown_path(path: Path) -> str:
    """The path, quoted if it is not printable on one line."""
    return str(path) if str(path).isprintable() else repr(str(path))


def reason(error: OSError) -> str:
    """The system's message in lower case, to follow a colon."""
    return (error.strerror or str(error)).lower()


def unreadable(path: Path, error: OSError) -> str:
    return f"{shown_path(path)}: cannot be read: {reason(error)}"


def unwritable(path: Path, error: OSError) -> str:
    return f"{shown_path(path)}: cannot be written: {reason(error)}"
