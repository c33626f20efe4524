"""The section on what skipping neurons leaves of a model."""

from typing import Any

import pandas as pd

from bench.quality import DIVERGENCE, ERROR, LOSS, SAME
from bench.report.lookup import present
from bench.report.plots import Line, Mark, panels
from bench.report.table import NONE, Cell, Column, Plot, Section, digits, table, text
from bench.sparsity import ALL, BENCH, FIRED, PRECISION, PREDICTED, RECALL, SHARE, THRESHOLD

TITLE = "What skipping neurons leaves of a model"
LEAD = (
    "The embedded ReLU story model on held-out stories. Neurons that do not fire may be skipped for"
    " nothing; predictors have to say beforehand which ones fire, and a higher threshold names"
    " fewer. The divergence is from the same model with all its neurons."
)


def section(rows: pd.DataFrame) -> Section:
    """Perplexity, divergence and active share, threshold by threshold."""
    found = ways(rows)
    if not len(found):
        return Section("sparsity", TITLE, LEAD)
    fire = f"{_percent(found[FIRED].iloc[0])} of the neurons fire"

    def figure(name: str, *, predicted: bool = False) -> Column:
        def cell(way: dict[str, Any]) -> Cell:
            known = way["variant"] == PREDICTED or not predicted
            return Cell(_percent(way[name]), way[name]) if known else NONE

        return cell

    columns: dict[str, Column] = {
        "Neurons": lambda way: text(way["variant"]),
        "Threshold": lambda way: (
            Cell(way[THRESHOLD], float(way[THRESHOLD])) if way["variant"] == PREDICTED else NONE
        ),
        "Active": figure(SHARE),
        "Recall": figure(RECALL, predicted=True),
        "Precision": figure(PRECISION, predicted=True),
        "Perplexity": lambda way: Cell(f"{way[LOSS]:.4f} ± {way[LOSS + ERROR]:.4f}", way[LOSS]),
        "KL divergence": lambda way: NONE if way["variant"] == ALL else divergence(way),
        "Same likeliest token": lambda way: Cell(f"{100 * way[SAME]:.2f}%", way[SAME]),
    }
    many = found.to_dict("records")
    made = table("sparsity-thresholds", fire, many, columns, top=len(many))
    return Section("sparsity", TITLE, LEAD, _plots(found, fire), (made,))


def ways(rows: pd.DataFrame) -> pd.DataFrame:
    """A row for each way to choose neurons, in the order measured, a column for each figure."""
    mine = present(rows, bench=BENCH)
    wide = mine.set_index(["variant", "shape", "test"])["median"].unstack(sort=False)
    found = wide.reset_index()
    return found.assign(**{THRESHOLD: found["shape"].str.removeprefix(f"{THRESHOLD}=")})


def divergence(figures: dict[str, float]) -> Cell:
    """E.g. 0.010 ± 0.001."""
    value, error = figures[DIVERGENCE], figures[DIVERGENCE + ERROR]
    return Cell(f"{digits(value, 2)} ± {digits(error, 1)}", value)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def _plots(found: pd.DataFrame, fire: str) -> tuple[Plot, ...]:
    """What predicted neurons buy."""
    drawn = found[(found["variant"] == PREDICTED) & (found[SHARE] > 0) & (found[DIVERGENCE] > 0)]
    if not len(drawn):
        return ()
    drawn = drawn.sort_values(SHARE)
    marks = tuple(Mark(y, y, y) for y in 1000 * drawn[DIVERGENCE])
    line = Line(PREDICTED, tuple(drawn[SHARE]), marks)
    titled = {"KL divergence from all neurons\nthousandths of a nat": [line]}
    ticks = {share: f"{100 * share:g}%" for share in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)}
    caption = f"What active neurons buy, where {fire.partition(' of')[0]} fire: both scales"
    caption += " logarithmic, lower is better"
    return (panels("plot-sparsity", caption, titled, "active neurons", ticks, log=True),)
