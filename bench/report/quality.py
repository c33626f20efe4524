"""The section on what each weight format leaves of a model."""

import math
from collections.abc import Mapping
from itertools import takewhile
from typing import Any

import pandas as pd

from bench.quality import BASE as F16
from bench.quality import (
    BENCH,
    BITS,
    DIVERGENCE,
    ERROR,
    EXPECTED,
    FLOOR,
    GAIN,
    LLAMA_3,
    LOSS,
    MIXED,
    PURE,
    SAME,
)
from bench.report.lookup import present
from bench.report.plots import Line, Mark, panels
from bench.report.sparsity import divergence
from bench.report.table import NONE, Cell, Column, Plot, Section, Table, listed, table, text

TERNARY = "ternary"
FAMILIES = {  # by how a name begins, the first that fits
    "TQ": TERNARY,
    "IQ": "codebooks",
    "MXFP4": "codebooks",
    "Q": "blocks of 32",
}
SURE = 2.0  # standard errors
TITLE = "What a format leaves of a model"
LEAD = (
    "The embedded story model, read on held-out stories, each on its own. No model can beat the"
    " perplexity of the grammar that wrote them. The divergence from F16 judges a format better"
    " than perplexity, in which the choice of stories plays a part. Rows stand in the order that"
    " llama.cpp's figures of a large model lead one to expect."
)


def section(rows: pd.DataFrame) -> Section:
    """Perplexity, and the divergence from F16, format by format."""
    floor, pure, mixed = quality(rows)
    tables = []
    if len(pure):
        caption = f"All matrices in one format; the grammar's own perplexity is {floor:.4f}"
        tables.append(_table("quality-formats", caption, pure, pure))
    if len(mixed):
        caption = "llama.cpp's mixes, beside what they add to Llama-3-8B's 6.233 on wikitext-2"
        tables.append(_table("quality-mixes", caption, mixed, pure, LLAMA_3))
    return Section("quality", TITLE, LEAD, _plots(pure, mixed), tuple(tables))


def quality(rows: pd.DataFrame) -> tuple[float, pd.DataFrame, pd.DataFrame]:
    """The floor, and figures by format and by mix, in the order expected, a column for each."""
    mine = present(rows, bench=BENCH)
    floors = mine[mine["test"] == FLOOR]["median"]
    found = []
    for kind, expected in ((PURE, EXPECTED), (MIXED, tuple(LLAMA_3))):
        some = mine[(mine["variant"] == kind) & (mine["test"] != FLOOR)]
        wide = some.set_index(["format", "test"])["median"].unstack(sort=False)
        known = [name for name in expected if name in wide.index]
        found.append(wide.loc[[*known, *(name for name in wide.index if name not in known)]])
    return float(floors.iloc[0]) if len(floors) else math.nan, *found


def _table(
    anchor: str,
    caption: str,
    found: pd.DataFrame,
    pure: pd.DataFrame,
    elsewhere: Mapping[str, float] | None = None,
) -> Table:
    def gained(figures: dict[str, Any]) -> Cell:
        if F16 not in pure.index or figures["format"] == F16:
            return NONE
        return _sized(figures[LOSS] - pure.loc[F16, LOSS], figures[GAIN + ERROR], 5, "+")

    def there(figures: dict[str, str]) -> Cell:
        added = (elsewhere or {}).get(figures["format"])
        return Cell(f"+{added:.4g}", added) if added else NONE

    def before(figures: dict[str, str]) -> Cell:
        worse = surprises(figures["format"], found)
        return text(f"before {listed(worse)}" if worse else "")

    columns: dict[str, Column] = {
        "Format": lambda figures: text(figures["format"]),
        "Bits a weight": lambda figures: Cell(f"{figures[BITS]:.2f}", figures[BITS]),
        "Perplexity": lambda figures: _sized(figures[LOSS], figures[LOSS + ERROR], 4),
        "− F16": gained,
        **({"Llama-3-8B − F16": there} if elsewhere else {}),
        "KL divergence": lambda figures: NONE if figures["format"] == F16 else divergence(figures),
        "Same likeliest token": lambda figures: Cell(f"{100 * figures[SAME]:.2f}%", figures[SAME]),
        "Order": before,
    }
    many = found.reset_index().to_dict("records")
    return table(anchor, caption, many, columns, top=len(many))


def _sized(value: float, error: float, places: int, sign: str = "") -> Cell:
    """A figure and its error to so many decimals, where that many mean anything."""
    places = places if error < 0.1 else 1
    return Cell(f"{value:{sign}.{places}f} ± {error:.{places}f}", value)


def surprises(name: str, found: pd.DataFrame) -> list[str]:
    """The formats expected to diverge less than this one that diverge more, by more than twice the
    standard error of the difference, taken as if the two had nothing in common."""
    far, error = found[DIVERGENCE], found[DIVERGENCE + ERROR]
    before = list(takewhile(lambda other: other != name, found.index))
    return [
        other
        for other in before
        if far[other] - far[name] > SURE * math.hypot(error[name], error[other])
    ]


def family(name: str) -> str:
    """Formats that are made alike."""
    if name[:1] == "Q" and "_K" in name:
        return "superblocks"
    return next((kind for begin, kind in FAMILIES.items() if name.startswith(begin)), "")


def _plots(pure: pd.DataFrame, mixed: pd.DataFrame) -> tuple[Plot, ...]:
    """What bits buy; without ternary formats, which a model has to be trained for."""
    kinds = pure.index.map(family)
    drawn = {kind: pure[kinds == kind] for kind in kinds.unique() if kind not in ("", TERNARY)}
    lines = []
    for kind, many in (*drawn.items(), ("mixes", mixed)):
        if len(many) and len(some := many[many[DIVERGENCE] > 0].sort_values(BITS)):
            marks = tuple(Mark(y, y, y) for y in 1000 * some[DIVERGENCE])
            lines.append(Line(kind, tuple(some[BITS]), marks))
    if not lines:
        return ()
    ticks = {float(n): str(n) for n in (2, 3, 4, 6, 8)}
    caption = "What bits buy: both scales logarithmic, lower is better"
    titled = {"KL divergence from F16\nthousandths of a nat": lines}
    return (panels("plot-quality", caption, titled, "bits a weight", ticks, log=True),)
