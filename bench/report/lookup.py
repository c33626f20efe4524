"""What a run holds, as the report's sections ask for it: frames of its measurements, a row each."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bench import frames
from bench.contenders.contender import OURS
from bench.ratio import Ratio, ratio
from bench.report.plots import Mark
from bench.report.table import NONE, Cell
from bench.results import Run

BATCHED = re.compile(r"pp(\d+)\+tg(\d+) x(\d+)(?: (prompt|generation))?")
_RATED = re.compile(r"(pp|tg)(\d+)(?: @ d(\d+))?")
_FORMAT = re.compile(r"(.+?)[-._]((?:iq|q)\d\w*|b?f16|f32)", re.IGNORECASE)
Measured = Any  # a row of such a frame


def rows_of(runs: Sequence[Run]) -> pd.DataFrame:
    """Of these runs all that machines can have given. `name` is a kernel's, as linear avx2 Q4_0;
    `size` its shape as people write it; a model goes by its file without the ending."""
    rows = frames.measured(runs)
    rows["name"] = [
        " ".join(filter(None, row)) for row in rows[["test", "variant", "format"]].values
    ]
    rows["size"] = rows["shape"].map(product)
    rows["model"] = rows["model"].str.removesuffix(".gguf")
    return rows[rows["impossible"] == ""]


def present(rows: pd.DataFrame, **wanted: object) -> pd.DataFrame:
    """Those with samples whose fields have these values."""
    found = rows["median"].notna()
    for name, value in wanted.items():
        found &= rows[name] == value
    return rows[found]


def our_ops(rows: pd.DataFrame, phase: str = "run") -> pd.DataFrame:
    """Our kernels alone, in one phase."""
    return present(rows, bench="op", contender=OURS, phase=phase)


def largest(rows: pd.DataFrame) -> pd.DataFrame:
    """Of each kernel the case that moves most bytes, cold before hot; most bytes first."""
    ordered = rows.assign(cold=rows["cache"] == "cold").sort_values(
        ["cold", "bytes"], ascending=False, kind="stable"
    )
    return ordered.drop_duplicates("name").sort_values("bytes", ascending=False, kind="stable")


def family(model: str) -> tuple[str, str]:
    """The model without its format, and the format: tinyllama-q4_0 is (tinyllama, Q4_0)."""
    found = _FORMAT.fullmatch(model)
    return (found[1], found[2].upper()) if found else (model, "")


def sizes(shape: str) -> dict[str, int]:
    """The shape's axes; nothing of a shape that is none, as a node's label."""
    pairs = [word.partition("=") for word in shape.split(",")]
    return {axis: int(size) for axis, _, size in pairs if size.isdigit()}


def product(shape: str) -> str:
    """Of a product tokens × hidden → out, else the sizes by name."""
    s = sizes(shape)
    if list(s) == ["tokens", "hidden", "out"]:
        return f"{s['tokens']} × {s['hidden']} → {s['out']}"
    defaults = ("sequences=1", "windowed=0", "alibi=0", "softcapped=0")  # plain attention
    return " ".join(word for word in shape.split(",") if word not in defaults)


def mark(row: Measured, amount: float) -> Mark:
    """How much of something a second: at the median, and the quartiles."""
    return Mark(amount / row.median, amount / row.high, amount / row.low)


def faster(row: Measured, other: Measured) -> Ratio:
    """How many times as fast a measurement is as another one."""
    return ratio(other.samples, row.samples, together=int(in_turns(row, other)))


def in_turns(row: Measured, other: Measured) -> bool:
    return bool(row.rivals) and row.rivals == other.rivals


def times(found: Ratio | None) -> Cell:
    """E.g. 2.00 [1.95, 2.03]."""
    if not found:
        return NONE
    return Cell(f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]", found.value)


def share(found: Ratio | None) -> Cell:
    """E.g. 91% [89%, 92%]."""
    if not found:
        return NONE
    return Cell(f"{found.value:.0%} [{found.low:.0%}, {found.high:.0%}]", found.value)


def faster_cell(row: Measured | None, other: Measured | None) -> Cell:
    """The same of two measurements; of those that took no turns it is marked."""
    if row is None or other is None or not row.samples or not other.samples:
        return NONE
    found = faster(row, other)
    tone = ("good" if found.value > 1 else "bad") if found.significant else ""
    if in_turns(row, other):
        return Cell(times(found).text, found.value, tone=tone)
    return Cell(times(found).text + " †", found.value, "not measured in turns", tone)


@dataclass(frozen=True, slots=True)
class Rated:
    """An engine's test of one kind: pp or tg, of so many tokens, after so many."""

    kind: str
    tokens: int
    depth: int

    @classmethod
    def of(cls, test: str) -> "Rated | None":
        found = _RATED.fullmatch(test)
        return cls(found[1], int(found[2]), int(found[3] or 0)) if found else None


@dataclass(frozen=True, slots=True)
class Duel:
    """One test of one model by everyone who took part, and by those who are absent."""

    model: str
    test: str
    rated: Rated
    threads: int
    sides: dict[str, Measured]

    @property
    def ours(self) -> Measured | None:
        found = self.sides.get(OURS)
        return found if found and found.samples else None

    @property
    def fastest(self) -> float:
        """Tokens a second of whoever has most."""
        rates = [side.tokens_per_second for side in self.sides.values() if side.samples]
        return max(rates, default=0.0)


def duels(rows: pd.DataFrame) -> list[Duel]:
    """All pp and tg tests, generation first; the largest family first (the slowest at generating:
    it reads the most a token), its fastest format first."""
    found = []
    engine = rows[rows["bench"] == "engine"]
    for (model, test, threads), group in engine.groupby(["model", "test", "threads"], sort=False):
        if rated := Rated.of(test):
            sides = {side.contender: side for side in group.itertuples()}
            found.append(Duel(model, test, rated, int(threads), sides))
    paces: dict[str, float] = {}  # of a family's generation, the slowest
    for duel in found:
        if duel.rated.kind == "tg":
            name = family(duel.model)[0]
            paces[name] = min(paces.get(name, math.inf), duel.fastest)

    def place(duel: Duel) -> tuple[object, ...]:
        rated, pace = duel.rated, paces.get(family(duel.model)[0], math.inf)
        return rated.kind != "tg", pace, -duel.fastest, rated.depth, -rated.tokens, -duel.threads

    return sorted(found, key=place)


def main_duels(found: Sequence[Duel]) -> list[Duel]:
    """One test of each kind and model: after no tokens, the longest, on most threads."""
    best: dict[tuple[str, str], Duel] = {}
    for duel in sorted(found, key=lambda d: (-d.threads, -d.rated.tokens)):
        if duel.rated.depth == 0:
            best.setdefault((duel.model, duel.rated.kind), duel)
    chosen = set(map(id, best.values()))
    return [duel for duel in found if id(duel) in chosen]
