"""Files that change while they are read."""

import os
from pathlib import Path

import pytest


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def touched(path: Path) -> None:
    os.utime(path, ns=(1, 1))


changing = pytest.mark.parametrize(
    ("change", "message"), [(cut, r"cut short|changed"), (touched, "changed")]
)
