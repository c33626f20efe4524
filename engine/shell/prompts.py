"""Reads prompts from the command line, files and standard input."""

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from engine.shell.command_line.options import Sampling

ESCAPE = re.compile(rb"\\(?:([nrt'\"\\])|x([0-9a-fA-F]{2}))")
ESCAPED = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}


def prompt_text(prompt: str | None, file: Path | None, escape: bool = False) -> str:
    """The prompt from the command line, a file or, given neither, standard input (`-` as well).

    A file's final newline is not part of the prompt, as in llama.cpp; with `escape`, escape
    sequences are replaced. A usage error without a prompt, ValueError for invalid UTF-8.
    """
    if prompt is not None and file is not None:
        raise typer.BadParameter("give --prompt or --file, not both")
    if prompt is None and file is None and sys.stdin.isatty():
        raise typer.BadParameter("give a prompt: -p TEXT, -f FILE or standard input")
    text = read_text(file) if prompt is None else prompt
    return unescaped(text) if escape else text


def read_text(file: Path | None) -> str:
    """A file's text, or that of standard input, without the final newline."""
    stdin = file is None or str(file) == "-"
    data = sys.stdin.buffer.read() if stdin or file is None else file.read_bytes()
    try:
        return data.decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        source = "standard input" if stdin else file
        raise ValueError(f"{source}: byte {error.start} is not valid UTF-8") from None


def unescaped(text: str) -> str:
    r"""Replace \n, \r, \t, \', \", \\ and \x41; other backslashes stay. Bytes that are not UTF-8
    become U+FFFD."""

    def byte(found: re.Match[bytes]) -> bytes:
        letter, code = found.groups()
        return bytes([int(code, 16)]) if code else ESCAPED.get(letter, letter)

    return ESCAPE.sub(byte, text.encode(errors="surrogateescape")).decode(errors="replace")


def unescaped_sampling(sampling: "Sampling") -> "Sampling":
    """The same in stop strings and sequence breakers."""
    breakers = sampling.dry_sequence_breakers
    return replace(
        sampling,
        stop=[unescaped(text) for text in sampling.stop or ()],
        dry_sequence_breakers=breakers and [unescaped(text) for text in breakers],
    )
