"""`assay`: exit 0 when done, 1 with one plain line on stderr when not, 2 for wrong usage."""

import os
import sys
from pathlib import Path
from typing import NoReturn

WRONG = 2  # exit status where the program was called wrongly
INTERRUPTED = 130  # with which typer ends, in silence, on Ctrl-C


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
        # whoever read us has gone: let Python's own flush at exit find nothing to complain of
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except MemoryError as error:
        _fail(f"out of memory: {error}" if str(error) else "out of memory")
    except (ValueError, RuntimeError, ArithmeticError, OSError) as error:
        # Python 3.11 says RuntimeError of Ctrl-C while a class is made.
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


def _fail(line: str, code: int = 1) -> NoReturn:
    print(f"assay: {line}", file=sys.stderr)
    sys.exit(code)
