"""Cells of a report's tables."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.report.words import digits, duration
from bench.targets import Target


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table.

    `value` is the exact figure behind the text, by which the page sorts; `note` is shown on hover;
    `tone` is "good", "bad" or "quiet".
    """

    text: str
    value: float | None = None
    note: str = ""
    tone: str = ""


Column = Callable[[Any], Cell] | str  # of a row, such as a frame's: a function, or the field's name
NONE = Cell("—", tone="quiet")


def field(name: str, make: Callable[[Any], Cell] | None = None) -> Callable[[Any], Cell]:
    """A column of a row's field, by default as it is: words, integers with commas, others in three
    digits."""

    def plain(value: Any) -> Cell:
        if isinstance(value, str):
            return text(value)
        return count(int(value)) if isinstance(value, int | np.integer) else number(value)

    return lambda row: (make or plain)(getattr(row, name))


def number(value: float, note: str = "") -> Cell:
    """A figure in three digits, or a dash where there is none."""
    return Cell(digits(value), value, note) if math.isfinite(value) else NONE


def count(value: int, note: str = "") -> Cell:
    return Cell(f"{value:,}", value, note)


def text(words: str, tone: str = "", note: str = "") -> Cell:
    return Cell(words, None, note, tone) if words else NONE


def time(seconds: float, note: str = "") -> Cell:
    """A duration whose value is in seconds."""
    return Cell(duration(seconds), seconds, note) if math.isfinite(seconds) else NONE


def percent(share: float, note: str = "") -> Cell:
    """A share whose value is a fraction."""
    if not math.isfinite(share):
        return NONE
    return Cell(f"{100 * share:.{0 if share >= 0.1 else 1}f}%", share, note)


def places(value: float, count: int) -> Cell:
    """A figure to so many decimals."""
    return Cell(f"{value:.{count}f}", value) if math.isfinite(value) else NONE


def goal(target: Target | None) -> Cell:
    """At least so much, or at most."""
    if not target:
        return NONE
    return Cell(f"{'≤' if target.most else '≥'} {target.goal:g}", target.goal)
