"""The `assay` program."""

from engine.shell.main import main

__all__ = ["main"]
