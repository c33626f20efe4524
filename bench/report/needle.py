"""The section on retrieval: shares of questions answered, by policy, budget and depth."""

from collections.abc import Callable
from functools import partial

import pandas as pd

from bench.report.cells import Cell, Column, percent, places, text
from bench.report.lookup import present, settings
from bench.report.plots import grids
from bench.report.table import Plot, Section, Table, table

BENCH = "needle"
ANSWERED, PERPLEXITY, FLOOR = "answered", "perplexity", "floor"
FULL = "all cells"
BUDGET = "budget"
TITLE = "What a policy keeps of a long text"
LEAD = (
    "Facts are told at every depth of a text, among others like them and little stories, and one is"
    " asked for at its end: the share of questions answered with the fact, word for word."
    " Perplexity is of questions, answers and stories that follow a text whose cells were chosen"
    " before; no model can beat the grammar's own. Budgets are shares of the text's tokens. Nothing"
    " here is timed."
)
CAPTION = (
    "Per cent of questions answered, by the depth of the fact and how much of the text is kept"
)


def section(rows: pd.DataFrame) -> Section:
    """A table of answers and one of perplexities, policies down and budgets across, and a plot of
    answers by depth as well."""
    mine = present(rows, bench=BENCH)
    if not len(mine):
        return Section("needle", TITLE, LEAD)
    (floor,) = mine[mine["test"] == FLOOR]["median"]
    mine = mine[mine["test"] != FLOOR]
    mine = mine.assign(
        budget=mine["shape"].str.removeprefix(f"{BUDGET}=").astype(float),
        depth=mine["test"].str.extract(r" (\d+)/", expand=False).astype(float),
    )
    found, perplexities = mine[mine["depth"].notna()], mine[mine["test"] == PERPLEXITY]
    about = settings(mine.iloc[0])
    asked, model = int(about["tales"]) * found["depth"].nunique(), mine["model"].iloc[0]
    of_answers = f"{model}: of {asked} questions behind {int(about['tokens']):,} tokens answered"
    of_text = f"{model}: perplexity of what follows; the grammar's own is {floor:.4f}"
    tables = (
        _table("needle-answers", of_answers, found, percent),
        _table("needle-perplexity", of_text, perplexities, partial(places, count=4)),
    )
    return Section("needle", TITLE, LEAD, _plots(found), tables)


def _table(anchor: str, caption: str, found: pd.DataFrame, cell: Callable[[float], Cell]) -> Table:
    """Means, policies down and budgets across; all cells are the last column."""
    wide = found.groupby(["variant", "budget"], sort=False)["median"].mean().unstack()
    wide[1.0] = wide[1.0].fillna(wide.loc[FULL, 1.0])
    columns: dict[str, Column] = {"Policy": lambda row: text(row["variant"])}
    columns |= {told(b): lambda row, b=b: cell(row[b]) for b in sorted(wide.columns)}  # type: ignore[misc]
    rows = wide.drop(index=FULL).reset_index().to_dict("records")
    return table(anchor, caption, rows, columns, top=0)


def told(budget: float) -> str:
    """A share of a text, such as 12.5%."""
    return f"{100 * budget:.3g}%"


def _plots(found: pd.DataFrame) -> list[Plot]:
    """A grid for each policy; all cells are the last column of those that evict."""
    full, depths = found["variant"] == FULL, found["depth"].max()
    marks = [
        {
            "title": name,
            "x": told(row["budget"]),
            "y": f"{(row['depth'] - 0.5) / depths:.0%}",
            "value": row["median"],
        }
        for name, part in found[~full & (found["budget"] < 1)].groupby("variant", sort=False)
        for row in pd.concat([part, found[full]])
        .sort_values(["budget", "depth"])
        .to_dict("records")
    ]
    return grids("plot-depths", CAPTION, marks, "kept of the text", "depth of the fact")
