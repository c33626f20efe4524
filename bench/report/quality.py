"""Sections on quality by weight format and by sparsity."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from bench import sparsity
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
from bench.report.cells import NONE, Cell, Column, text
from bench.report.lookup import present
from bench.report.plots import panels
from bench.report.table import Plot, Section, Table, table
from bench.report.words import digits, listed
from bench.sparsity import ALL, FIRED, PRECISION, PREDICTED, RECALL, SHARE, THRESHOLD

TERNARY = "ternary"
FAMILIES = {  # by prefix of the name, the first that fits
    "TQ": TERNARY,
    "IQ": "codebooks",
    "MXFP4": "codebooks",
    "Q": "blocks of 32",
}
SURE = 2.0  # standard errors
LEAD = (
    "The embedded story model, read on held-out stories, each on its own. No model can beat the"
    " perplexity of the grammar that wrote them. The divergence from F16 judges a format better"
    " than perplexity, in which the choice of stories plays a part. Rows stand in the order that"
    " llama.cpp's figures of a large model lead one to expect."
)
SPARSITY_LEAD = (
    "The embedded ReLU story model on held-out stories. Neurons that do not fire may be skipped for"
    " nothing; predictors have to say beforehand which ones fire, and a higher threshold names"
    " fewer. The divergence is from the same model with all its neurons."
)
BOTH = "both scales logarithmic, lower is better"


def section(rows: pd.DataFrame) -> Section:
    """Perplexity, and the divergence from F16, format by format."""
    floor, pure, mixed = quality(rows)
    caption = f"All matrices in one format; the grammar's own perplexity is {floor:.4f}"
    beside = "llama.cpp's mixes, beside what they add to Llama-3-8B's 6.233 on wikitext-2"
    tables = (
        _table("quality-formats", caption, pure, pure),
        _table("quality-mixes", beside, mixed, pure, LLAMA_3),
    )
    title = "What a format leaves of a model"
    return Section("quality", title, LEAD, _plots(pure, mixed), tables)


def quality(rows: pd.DataFrame) -> tuple[float, pd.DataFrame, pd.DataFrame]:
    """The floor, and figures by format and by mix, in the expected order, a column for each."""
    mine = present(rows, bench=BENCH)
    floors = mine[mine["test"] == FLOOR]["median"]
    found = []
    for kind, expected in ((PURE, EXPECTED), (MIXED, tuple(LLAMA_3))):
        some = mine[(mine["variant"] == kind) & (mine["test"] != FLOOR)]
        wide = some.set_index(["format", "test"])["median"].unstack(sort=False)
        known = [name for name in expected if name in wide.index]
        found.append(wide.loc[[*known, *wide.index.difference(known, sort=False)]])
    return float(floors.iloc[0]) if len(floors) else math.nan, *found


def _table(
    anchor: str,
    caption: str,
    found: pd.DataFrame,
    pure: pd.DataFrame,
    elsewhere: Mapping[str, float] | None = None,
) -> Table:
    def gained(figures: Mapping[str, Any]) -> Cell:
        if F16 not in pure.index or figures["format"] == F16:
            return NONE
        return _sized(figures[LOSS] - pure.loc[F16, LOSS], figures[GAIN + ERROR], 5, "+")

    def there(figures: Mapping[str, str]) -> Cell:
        added = (elsewhere or {}).get(figures["format"])
        return Cell(f"+{added:.4g}", added) if added else NONE

    def before(figures: Mapping[str, str]) -> Cell:
        worse = surprises(figures["format"], found)
        return text(f"before {listed(worse)}" if worse else "")

    columns: dict[str, Column] = {
        "Format": lambda figures: text(figures["format"]),
        "Bits a weight": lambda figures: Cell(f"{figures[BITS]:.2f}", figures[BITS]),
        "Perplexity": lambda figures: _sized(figures[LOSS], figures[LOSS + ERROR], 4),
        "− F16": gained,
        **({"Llama-3-8B − F16": there} if elsewhere else {}),
        "KL divergence": lambda figures: NONE if figures["format"] == F16 else divergence(figures),
        "Same likeliest token": lambda figures: _percent(figures[SAME], 2),
        "Order": before,
    }
    return table(anchor, caption, found.reset_index().to_dict("records"), columns, top=0)


def _sized(value: float, error: float, places: int, sign: str = "") -> Cell:
    """A figure and its error to so many decimals, where that many are significant."""
    places = places if error < 0.1 else 1
    return Cell(f"{value:{sign}.{places}f} ± {error:.{places}f}", value)


def _percent(share: float, places: int = 1) -> Cell:
    return Cell(f"{100 * share:.{places}f}%", share)


def divergence(figures: Mapping[str, float]) -> Cell:
    """E.g. 0.010 ± 0.001."""
    value, error = figures[DIVERGENCE], figures[DIVERGENCE + ERROR]
    return Cell(f"{digits(value, 2)} ± {digits(error, 1)}", value)


def surprises(name: str, found: pd.DataFrame) -> list[str]:
    """Formats expected to diverge less than this one that diverge more, by over twice the standard
    error of the difference, taken as independent."""
    before, mine = found.iloc[: found.index.get_loc(name)], found.loc[name]
    errors = (before[DIVERGENCE + ERROR] ** 2 + mine[DIVERGENCE + ERROR] ** 2) ** 0.5
    return list(before.index[before[DIVERGENCE] - mine[DIVERGENCE] > SURE * errors])


def family(name: str) -> str:
    """Formats of one kind."""
    if name[:1] == "Q" and "_K" in name:
        return "superblocks"
    return next((kind for begin, kind in FAMILIES.items() if name.startswith(begin)), "")


def _plots(pure: pd.DataFrame, mixed: pd.DataFrame) -> list[Plot]:
    """Divergence by bits; without ternary formats, which a model must be trained for."""
    kinds = pure.index.map(family)
    drawn = {kind: pure[kinds == kind] for kind in kinds.unique() if kind not in ("", TERNARY)}
    title = "KL divergence from F16\nthousandths of a nat"
    marks = [
        {"title": title, "name": kind, "x": bits, "value": 1000 * far}
        for kind, many in (*drawn.items(), ("mixes", mixed))
        if len(many)
        for bits, far in many.sort_values(BITS)[[BITS, DIVERGENCE]].to_numpy()
        if far > 0
    ]
    ticks = {float(n): str(n) for n in (2, 3, 4, 6, 8)}
    caption = f"What bits buy: {BOTH}"
    return panels("plot-quality", caption, marks, "bits a weight", ticks, log=True)


def sparsity_section(rows: pd.DataFrame) -> Section:
    """Perplexity, divergence and active share, threshold by threshold."""
    title, found = "What skipping neurons leaves of a model", ways(rows)
    if not len(found):
        return Section("sparsity", title, SPARSITY_LEAD)
    fire = f"{_percent(found[FIRED].iloc[0]).text} of the neurons fire"

    def of_predictors(name: str) -> Column:
        return lambda way: _percent(way[name]) if way["variant"] == PREDICTED else NONE

    columns: dict[str, Column] = {
        "Neurons": lambda way: text(way["variant"]),
        "Threshold": lambda way: (
            Cell(way[THRESHOLD], float(way[THRESHOLD])) if way["variant"] == PREDICTED else NONE
        ),
        "Active": lambda way: _percent(way[SHARE]),
        "Recall": of_predictors(RECALL),
        "Precision": of_predictors(PRECISION),
        "Perplexity": lambda way: _sized(way[LOSS], way[LOSS + ERROR], 4),
        "KL divergence": lambda way: NONE if way["variant"] == ALL else divergence(way),
        "Same likeliest token": lambda way: _percent(way[SAME], 2),
    }
    made = table("sparsity-thresholds", fire, found.to_dict("records"), columns, top=0)
    return Section("sparsity", title, SPARSITY_LEAD, _curve(found, fire), (made,))


def ways(rows: pd.DataFrame) -> pd.DataFrame:
    """A row for each way to choose neurons, in the order measured, a column for each figure."""
    mine = present(rows, bench=sparsity.BENCH)
    wide = mine.set_index(["variant", "shape", "test"])["median"].unstack(sort=False)
    found = wide.reset_index()
    return found.assign(**{THRESHOLD: found["shape"].str.removeprefix(f"{THRESHOLD}=")})


def _curve(found: pd.DataFrame, fire: str) -> list[Plot]:
    """Quality by the share of predicted neurons."""
    drawn = found[(found["variant"] == PREDICTED) & (found[SHARE] > 0) & (found[DIVERGENCE] > 0)]
    drawn = drawn.sort_values(SHARE)
    title = "KL divergence from all neurons\nthousandths of a nat"
    marks = drawn.assign(title=title, name=PREDICTED, x=drawn[SHARE], value=1e3 * drawn[DIVERGENCE])
    ticks = {share: f"{100 * share:g}%" for share in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)}
    caption = f"What active neurons buy, where {fire.partition(' of')[0]} fire: {BOTH}"
    return panels("plot-sparsity", caption, marks, "active neurons", ticks, log=True)
