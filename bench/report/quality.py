"""The section on what each weight format leaves of a model."""

import math
from collections.abc import Mapping, Sequence
from itertools import takewhile

from bench.quality import BASE as F16
from bench.quality import BENCH, BITS, DIVERGENCE, ERROR, EXPECTED, FLOOR, GAIN, LOSS, SAME
from bench.report.lookup import present
from bench.report.plots import Line, Mark, panels
from bench.report.table import NONE, Cell, Plot, Row, Section, Table, digits, text
from bench.results import Run

FAMILIES = {  # by how a name begins, the first that fits
    "TQ": "ternary",
    "IQ": "codebooks",
    "MXFP4": "codebooks",
    "Q": "blocks of 32",
}
SURE = 2.0  # standard errors
Figures = Mapping[str, float]


def section(run: Run) -> Section:
    """Perplexity, and the divergence from F16, format by format."""
    floor, found = quality(run)
    lead = (
        "The embedded story model with all its matrices in one format (names that end in _M or _L"
        " are mixes), read on held-out stories, each on its own. No model can beat the perplexity"
        f" of the grammar that wrote them, {floor:.4f}. Divergence from the F16 model is the better"
        " judge: there the choice of stories plays no part. Rows stand in the order that the"
        " field's figures of large models lead one to expect."
    )
    if not found:
        return Section("quality", "What a format leaves of a model", "Not measured in this run.")
    columns = (
        "Format", "Bits a weight", "Perplexity", "− F16", "KL divergence", "Same likeliest token",
        "Order",
    )  # fmt: skip
    rows = tuple(_row(name, found) for name in found)
    table = Table("quality-formats", "Every weight format", columns, rows, top=len(rows))
    return Section(
        "quality", "What a format leaves of a model", lead, _plots(floor, found), (table,)
    )


def quality(run: Run) -> tuple[float, dict[str, Figures]]:
    """The floor, and each format's figures by name, in the order expected."""
    floor, found = math.nan, dict[str, dict[str, float]]()
    for m in present(run.measurements):
        if m.bench == BENCH and m.test == FLOOR:
            floor = m.median
        elif m.bench == BENCH:
            found.setdefault(m.format, {})[m.test] = m.median
    ordered = sorted(found, key=lambda name: (name not in EXPECTED, _place(name)))
    return floor, {name: found[name] for name in ordered}


def _place(name: str) -> int:
    return EXPECTED.index(name) if name in EXPECTED else 0


def _row(name: str, found: Mapping[str, Figures]) -> Row:
    mine = found[name]
    difference = NONE
    if F16 in found and name != F16:
        gained = mine[LOSS] - found[F16][LOSS]
        difference = Cell(f"{gained:+.4f} ± {mine[GAIN + ERROR]:.4f}", gained)
    divergence = f"{digits(mine[DIVERGENCE], 2)} ± {digits(mine[DIVERGENCE + ERROR], 1)}"
    return (
        text(name),
        Cell(f"{mine[BITS]:.2f}", mine[BITS]),
        Cell(f"{mine[LOSS]:.4f} ± {mine[LOSS + ERROR]:.4f}", mine[LOSS]),
        difference,
        NONE if name == F16 else Cell(divergence, mine[DIVERGENCE]),
        Cell(f"{100 * mine[SAME]:.2f}%", mine[SAME]),
        text(", ".join(f"before {other}" for other in surprises(name, found))),
    )


def surprises(name: str, found: Mapping[str, Figures]) -> Sequence[str]:
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


def _plots(floor: float, found: Mapping[str, Figures]) -> tuple[Plot, ...]:
    """What bits buy: the divergence, and the nats a token above the floor."""
    drawn = {name: family(name) for name in found if family(name)}
    values = {
        "KL divergence from F16, nats": {n: found[n][DIVERGENCE] for n in drawn},
        "Above the floor, nats a token": {n: math.log(found[n][LOSS] / floor) for n in drawn},
    }
    lines: dict[str, list[Line]] = {}
    for title, of in values.items():
        for kind in dict.fromkeys(drawn.values()):
            names = [n for n in drawn if drawn[n] == kind and of[n] > 0]
            names.sort(key=lambda n: found[n][BITS])
            if names:
                bits = tuple(found[n][BITS] for n in names)
                marks = tuple(Mark(of[n], of[n], of[n]) for n in names)
                lines.setdefault(title, []).append(Line(kind, bits, marks))
    if not lines:
        return ()
    ticks = {float(n): str(n) for n in (2, 3, 4, 6, 8)}
    caption = "What bits buy: both scales logarithmic, lower is better"
    return (panels("plot-quality", caption, lines, "bits a weight", ticks, log=True),)
