"""The section on what each weight format leaves of a model."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

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
from bench.report.table import NONE, Cell, Plot, Row, Section, Table, digits, listed, text
from bench.results import Run

TERNARY = "ternary"
FAMILIES = {  # by how a name begins, the first that fits
    "TQ": TERNARY,
    "IQ": "codebooks",
    "MXFP4": "codebooks",
    "Q": "blocks of 32",
}
SURE = 2.0  # standard errors
Figures = Mapping[str, float]
Named = Mapping[str, Figures]
TITLE = "What a format leaves of a model"
LEAD = (
    "The embedded story model, read on held-out stories, each on its own. No model can beat the"
    " perplexity of the grammar that wrote them. The divergence from F16 judges a format better"
    " than perplexity, in which the choice of stories plays a part. Rows stand in the order that"
    " llama.cpp's figures of a large model lead one to expect."
)


def section(run: Run) -> Section:
    """Perplexity, and the divergence from F16, format by format."""
    found = quality(run)
    tables = []
    if found.pure:
        caption = f"All matrices in one format; the grammar's own perplexity is {found.floor:.4f}"
        tables.append(_table("quality-formats", caption, found.pure, found.pure, {}))
    if found.mixed:
        caption = "llama.cpp's mixes, beside what they add to Llama-3-8B's 6.233 on wikitext-2"
        tables.append(_table("quality-mixes", caption, found.mixed, found.pure, LLAMA_3))
    return Section("quality", TITLE, LEAD, _plots(found), tuple(tables))


@dataclass(frozen=True, slots=True)
class Found:
    """The floor, and figures by format and by mix, in the order expected."""

    floor: float
    pure: Named
    mixed: Named


def quality(run: Run) -> Found:
    floor = math.nan
    found: dict[str, dict[str, dict[str, float]]] = {PURE: {}, MIXED: {}}
    for m in present(run.measurements):
        if m.bench == BENCH and m.test == FLOOR:
            floor = m.median
        elif m.bench == BENCH:
            found[m.variant].setdefault(m.format, {})[m.test] = m.median
    return Found(floor, _ordered(found[PURE], EXPECTED), _ordered(found[MIXED], tuple(LLAMA_3)))


def _ordered(found: Named, expected: tuple[str, ...]) -> Named:
    known = [name for name in expected if name in found]
    return {name: found[name] for name in (*known, *(n for n in found if n not in known))}


def _table(
    anchor: str, caption: str, found: Named, pure: Named, elsewhere: Mapping[str, float]
) -> Table:
    other = ("Llama-3-8B − F16",) if elsewhere else ()
    columns = (
        "Format", "Bits a weight", "Perplexity", "− F16", *other, "KL divergence",
        "Same likeliest token", "Order",
    )  # fmt: skip
    rows = []
    for name in found:
        added = elsewhere.get(name)
        there = () if not elsewhere else (Cell(f"+{added:.4g}", added) if added else NONE,)
        rows.append(_row(name, found, pure.get(F16), there))
    return Table(anchor, caption, columns, tuple(rows), top=len(rows))


def _row(name: str, found: Named, base: Figures | None, there: Row) -> Row:
    mine = found[name]
    difference = NONE
    if base and mine is not base:
        gained = mine[LOSS] - base[LOSS]
        difference = _sized(gained, mine[GAIN + ERROR], 5, "+")
    divergence = f"{digits(mine[DIVERGENCE], 2)} ± {digits(mine[DIVERGENCE + ERROR], 1)}"
    before = surprises(name, found)
    return (
        text(name),
        Cell(f"{mine[BITS]:.2f}", mine[BITS]),
        _sized(mine[LOSS], mine[LOSS + ERROR], 4),
        difference,
        *there,
        NONE if mine is base else Cell(divergence, mine[DIVERGENCE]),
        Cell(f"{100 * mine[SAME]:.2f}%", mine[SAME]),
        text(f"before {listed(before)}" if before else ""),
    )


def _sized(value: float, error: float, places: int, sign: str = "") -> Cell:
    """A figure and its error to so many decimals, where that many mean anything."""
    places = places if error < 0.1 else 1
    return Cell(f"{value:{sign}.{places}f} ± {error:.{places}f}", value)


def surprises(name: str, found: Named) -> Sequence[str]:
    """The formats expected to diverge less than this one that diverge more, by more than twice the
    standard error of the difference, taken as if the two had nothing in common."""
    mine = found[name]

    def worse(other: Figures) -> bool:
        error = math.hypot(mine[DIVERGENCE + ERROR], other[DIVERGENCE + ERROR])
        return other[DIVERGENCE] - mine[DIVERGENCE] > SURE * error

    return [o for o in takewhile(lambda o: o != name, found) if worse(found[o])]


def family(name: str) -> str:
    """Formats that are made alike."""
    if name[:1] == "Q" and "_K" in name:
        return "superblocks"
    return next((kind for begin, kind in FAMILIES.items() if name.startswith(begin)), "")


def _plots(found: Found) -> tuple[Plot, ...]:
    """What bits buy; without ternary formats, which a model has to be trained for."""
    drawn: dict[str, list[Figures]] = {}
    for name, mine in found.pure.items():
        if family(name) not in ("", TERNARY):
            drawn.setdefault(family(name), []).append(mine)
    if found.mixed:
        drawn["mixes"] = list(found.mixed.values())
    lines = []
    for kind, many in drawn.items():
        points = sorted((m[BITS], 1000 * m[DIVERGENCE]) for m in many if m[DIVERGENCE] > 0)
        marks = tuple(Mark(y, y, y) for _, y in points)
        lines.append(Line(kind, tuple(x for x, _ in points), marks))
    lines = [line for line in lines if line.marks]
    if not lines:
        return ()
    ticks = {float(n): str(n) for n in (2, 3, 4, 6, 8)}
    caption = "What bits buy: both scales logarithmic, lower is better"
    titled = {"KL divergence from F16\nthousandths of a nat": lines}
    return (panels("plot-quality", caption, titled, "bits a weight", ticks, log=True),)
