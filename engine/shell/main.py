"""`assay`: exit 0 when done, 1 with one plain line on stderr when not, 2 for wrong usage."""

import os
import sys

import typer

from engine.shell import certify, chat, op, plan, run, tokenize

app = typer.Typer(
    name="assay",
    help="A lab in which LLM kernels prove themselves before an engine may use them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (run.run, chat.chat, tokenize.tokenize, plan.plan, op.ops, op.op, certify.certify):
    app.command()(command)


INTERRUPTED = 130  # with which typer ends, in silence, on Ctrl-C


def main() -> None:
    """Run the program; every expected error is one line."""
    try:
        app()
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
        # the errors that the rooms raise on bad input all derive from these; a traceback is for
        # those who ask for it
        if os.environ.get("ASSAY_TRACEBACK"):
            raise
        _fail(_line(error))


def _line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__


def _fail(line: str) -> None:
    print(f"assay: {line}", file=sys.stderr)
    sys.exit(1)
