"""The entry point of `assay`: exit status 0 on success, 1 with one plain line on stderr on failure,
2 for wrong usage."""

import os
import sys
from pathlib import Path
from typing import NoReturn

WRONG = 2  # exit status where the program was called wrongly
INTERRUPTED = 130  # typer's exit status on Ctrl-C, without a message


def main() -> None:
    """Run the program; every expected error is one line."""
    try:
        _open_missing()
        from engine.shell.program import app

        code = app(prog_name="assay", standalone_mode=False)
        sys.stdout.flush()
    except KeyboardInterrupt:
        _fail("interrupted")
    except BrokenPipeError:
        # the reader has gone: leave nothing for Python's own flush at exit to complain about
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except MemoryError as error:
        _fail(f"out of memory: {error}" if str(error) else "out of memory")
    except (ValueError, RuntimeError, ArithmeticError, OSError) as error:
        # Python 3.11 raises RuntimeError for Ctrl-C while a class is created.
        if isinstance(error.__cause__, KeyboardInterrupt):
            _fail("interrupted")
        if isinstance(error.__cause__, EOFError):
            _fail("standard input is at its end")
        # the errors that the rooms raise on bad input all derive from these; a traceback is for
        # those who ask for it
        if os.environ.get("ASSAY_TRACEBACK"):
            raise
        from engine.shell.command_line.command import spelt

        _fail(spelt(_line(error)))
    except Exception as error:
        from engine.shell.command_line.command import UsageError, misuse

        if not isinstance(error, UsageError):
            raise
        _fail(misuse(error), WRONG)
    if code == INTERRUPTED:
        _fail("interrupted")
    sys.exit(code if isinstance(code, int) else 0)


def _open_missing() -> None:
    """Replace closed standard streams by empty ones; output needs a real one."""
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


def _fail(line: str, code: int = 1) -> NoReturn:
    print(f"assay: {line}", file=sys.stderr)
    sys.exit(code)
