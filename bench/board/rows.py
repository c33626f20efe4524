"""Leaderboard rows, as JSON and as a frame."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, get_origin

if TYPE_CHECKING:
    from pandas import DataFrame


class BoardError(ValueError):
    """JSON that is no leaderboard."""


@dataclass(frozen=True, slots=True)
class Row:
    """A solution of an op at a shape, on a machine.

    - `rank`: its place, which those that tie share, and 0 of one that is not right. `ratio`, from
      `low` to `high`: its time over the fastest's, in turns.
    - `share`: of the machine's limit there, 0 if unknown. `worst`: error over bound, `ordinary`:
      the same of ordinary values alone, and so `nmse`. `held` and `broken`: laws. `why`: of one
      that is not right.
    """

    machine: str
    op: str
    format: str
    shape: str
    threads: int
    name: str
    verdict: str
    rank: int = 0
    seconds: float = 0.0
    samples: int = 0
    ratio: float = 0.0
    low: float = 0.0
    high: float = 0.0
    share: float = 0.0
    worst: float = 0.0
    nmse: float = 0.0
    ordinary: float = 0.0
    numerics: str = "exact"
    held: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    why: str = ""

    @property
    def race(self) -> tuple[str, str, str, str, int]:
        """The key of solutions that are compared with each other."""
        return self.op, self.format, self.shape, self.machine, self.threads

    def json(self) -> dict[str, Any]:
        """As JSON; infinities become null."""
        said = asdict(self)
        return {k: None if v in (math.inf, -math.inf) else v for k, v in said.items()}

    @classmethod
    def of(cls, said: Any) -> "Row":
        """Parse the output of `json`; BoardError for anything else."""
        if not isinstance(said, dict) or set(said) != {f.name for f in fields(cls)}:
            raise BoardError("a row has other keys than a board's")
        values: dict[str, Any] = {
            name: math.inf if value is None else value for name, value in said.items()
        }
        for field in fields(cls):
            value = values[field.name]
            kind: Any = get_origin(field.type) or field.type
            kind = float | int if kind is float else kind
            if kind is tuple and isinstance(value, list) and all(isinstance(v, str) for v in value):
                values[field.name] = value = tuple(value)
            if not isinstance(value, kind):
                raise BoardError(f"{field.name} is not {said[field.name]!r}")
        return cls(**values)


def sorted_rows(rows: Iterable[Row]) -> list[Row]:
    """Race by race, the fastest first and wrong solutions last."""
    return sorted(rows, key=lambda r: (r.race, r.rank or math.inf, r.seconds, r.name))


def frame(rows: Sequence[Row]) -> "DataFrame":
    """One row each: `frame[frame["rank"] == 1]` are the winners, ties included."""
    import pandas as pd

    return pd.DataFrame([asdict(row) for row in rows], columns=[f.name for f in fields(Row)])
