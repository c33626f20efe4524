"""`assay`: exit 0 when done, 1 with one plain line on stderr when not, 2 for wrong usage."""

import os
import sys
from pathlib import Path

INTERRUPTED = 130  # with which typer ends, in silence, on Ctrl-C


def main() -> None:
    """Run the program; every expected error is one line."""
    try:
        _open_missing()
        from engine.shell.program import app

        app()
    except KeyboardInterrupt:
        _fail("interrupted")
    except SystemExit as ending:
        if ending.code == INTERRUPTED:
            _fail("interrupted")
        raise
    except BrokenPipeError:
        # whoever read us has gone: let Python's own flush at exit find nothing to complain of
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except MemoryError as error:
        _fail(f"out of memory: {error}" if str(error) else "out of memory")
    except (ValueError, RuntimeError, ArithmeticError, OSError) as error:
        # Python 3.11 says RuntimeError of Ctrl-C while a class is made.
        if isinstance(error.__cause__, KeyboardInterrupt):
            _fail("interrupted")
        # the errors that the rooms raise on bad input all derive from these; a traceback is for
        # those who ask for it
        if os.environ.get("ASSAY_TRACEBACK"):
            raise
        _fail(_line(error))


def _open_missing() -> None:
    """Where a standard stream was closed, an empty one stands in; output needs a real one."""
    if sys.stdin is None:
        sys.stdin = Path(os.devnull).open()  # noqa: SIM115  open to the end
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    if sys.stdout is None:
        raise ValueError("standard output is closed")


def _line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'standard output'}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def _fail(line: str) -> None:
    print(f"assay: {line}", file=sys.stderr)
    sys.exit(1)
