"""The section on what skipping neurons leaves of a model."""

from collections.abc import Mapping

from bench.quality import DIVERGENCE, ERROR, LOSS, SAME
from bench.report.lookup import present
from bench.report.plots import Line, Mark, panels
from bench.report.table import NONE, Cell, Plot, Row, Section, Table, digits, text
from bench.results import Run
from bench.sparsity import ALL, BENCH, FIRED, PRECISION, PREDICTED, RECALL, SHARE, THRESHOLD

Figures = Mapping[str, float]
Ways = Mapping[tuple[str, str], Figures]  # by kind and threshold
TITLE = "What skipping neurons leaves of a model"
LEAD = (
    "The embedded ReLU story model on held-out stories. Neurons that do not fire may be skipped for"
    " nothing; predictors have to say beforehand which ones fire, and a higher threshold names"
    " fewer. The divergence is from the same model with all its neurons."
)


def section(run: Run) -> Section:
    """Perplexity, divergence and active share, threshold by threshold."""
    found = ways(run)
    tables: tuple[Table, ...] = ()
    if found:
        share = next(iter(found.values()))[FIRED]
        caption = f"{_percent(share)} of the neurons fire"
        columns = (
            "Neurons", "Threshold", "Active", "Recall", "Precision", "Perplexity",
            "KL divergence", "Same likeliest token",
        )  # fmt: skip
        rows = tuple(_row(kind, threshold, mine) for (kind, threshold), mine in found.items())
        tables = (Table("sparsity-thresholds", caption, columns, rows, top=len(rows)),)
    return Section("sparsity", TITLE, LEAD, _plots(found), tables)


def ways(run: Run) -> Ways:
    """Figures of each way to choose neurons, in the order measured."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for m in present(run.measurements):
        if m.bench == BENCH:
            threshold = m.shape.removeprefix(f"{THRESHOLD}=")
            found.setdefault((m.variant, threshold), {})[m.test] = m.median
    return found


def _row(kind: str, threshold: str, mine: Figures) -> Row:
    divergence = f"{digits(mine[DIVERGENCE], 2)} ± {digits(mine[DIVERGENCE + ERROR], 1)}"
    predicted = kind == PREDICTED
    return (
        text(kind),
        Cell(threshold, float(threshold)) if predicted else NONE,
        Cell(_percent(mine[SHARE]), mine[SHARE]),
        Cell(_percent(mine[RECALL]), mine[RECALL]) if predicted else NONE,
        Cell(_percent(mine[PRECISION]), mine[PRECISION]) if predicted else NONE,
        Cell(f"{mine[LOSS]:.4f} ± {mine[LOSS + ERROR]:.4f}", mine[LOSS]),
        NONE if kind == ALL else Cell(divergence, mine[DIVERGENCE]),
        Cell(f"{100 * mine[SAME]:.2f}%", mine[SAME]),
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def _plots(found: Ways) -> tuple[Plot, ...]:
    """What predicted neurons buy."""
    points = sorted(
        (mine[SHARE], 1000 * mine[DIVERGENCE])
        for (kind, _), mine in found.items()
        if kind == PREDICTED and mine[SHARE] > 0 and mine[DIVERGENCE] > 0
    )
    if not points:
        return ()
    line = Line(PREDICTED, tuple(x for x, _ in points), tuple(Mark(y, y, y) for _, y in points))
    titled = {"KL divergence from all neurons\nthousandths of a nat": [line]}
    ticks = {share: f"{100 * share:g}%" for share in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)}
    caption = (
        f"What active neurons buy, where {_percent(next(iter(found.values()))[FIRED])} fire: both"
        " scales logarithmic, lower is better"
    )
    return (panels("plot-sparsity", caption, titled, "active neurons", ticks, log=True),)
