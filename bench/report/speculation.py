"""The section on speculative decoding: measured speedups beside those by the formula."""

from collections.abc import Iterator
from dataclasses import asdict, replace

import numpy as np
import pandas as pd

from bench.race.ratio import Ratio, ratio
from bench.report.cells import NONE, Cell, Column, field, number, percent, text
from bench.report.lookup import share, times
from bench.report.plots import panels
from bench.report.table import Plot, Section, Table, table
from bench.report.words import plural
from bench.speculation import races
from bench.speculation.races import Synthetic

TOGETHER = 3  # rounds that are resampled together
VERIFY_TOKENS, VERIFY_GOAL = 5, 1.35
FORMULA_GOAL, PAIR_GOAL, LOOKUP_GOAL = 0.85, 1.5, 2.0
GRID = tuple(float(alpha) for alpha in np.linspace(0, 1, 11))
TITLES = {
    races.VERIFY: "steps of several tokens",
    races.FORMULA: "a synthetic drafter",
    races.CURVE: "a synthetic drafter, by acceptance",
    races.PAIR: "a draft model",
    races.LOOKUP: "prompt lookup where a passage is copied",
    races.SPARSE: "drafts where neurons are skipped",
    races.UNION: "neurons that a step's tokens need together",
}
TITLE = "Speculative decoding"
LEAD = (
    "Ways to write take turns in one process; prompts are not timed. Medians, and ratios with their"
    " 95% bootstrap intervals, of verifying with quartiles. A synthetic drafter knows the text, is"
    " right about a token with probability alpha and spins for c steps of the target at each; for"
    " its drafts of gamma tokens the formula is (1 − alpha^(gamma + 1)) / (1 − alpha) /"
    " (gamma c + 1) (arXiv 2211.17192). “Verifying” is the measured cost of a step of gamma + 1"
    " tokens, “with verifying” the formula with that in place of its last 1. Texts are the plain"
    " ones, token for token, but for drafts drawn by sampling, which lead to others of the same"
    " distribution."
)


def section(rows: pd.DataFrame) -> Section:
    """A table for each race, and for each model whose neurons were counted; goals below them."""
    tables, plots, notes = list[Table](), list[Plot](), list[str]()
    costs: dict[str, Costs] = {}
    mine = rows[rows["bench"] == races.BENCH].groupby(["model", "shape", "rivals"], sort=False)
    for i, ((model, shape, _), part) in enumerate(mine):
        kind, _, where = shape.partition(" ")
        name, settings = f"{model}: {TITLES.get(kind, kind)}", part["settings"].iloc[0]
        caption = f"{name}, on {plural(int(part['threads'].iloc[0]), 'thread')}"
        anchor, goals = f"speculation-{i}", list[str]()
        if kind == races.VERIFY:
            found = costs[model] = Costs(part)
            tables.append(found.table(anchor, f"{caption}, {where}"))
            plots += found.plot(f"plot-{anchor}", f"{name}: what verifying costs")
            goals += found.goal()
        elif kind == races.UNION:
            tables.append(_union_table(anchor, caption, part))
            plots += _union_plot(f"plot-{anchor}", name, part)
        else:
            ways = _ways(part, costs.get(model))
            tables.append(_race_table(anchor, caption, ways))
            plots += _curve(f"plot-{anchor}", name, ways) if kind == races.CURVE else []
            goals += [*_goals(kind, ways), *([f"{settings}."] if settings else [])]
        notes += [f"{name}: {line}" for line in goals]
    return Section("speculation", TITLE, LEAD, plots, tables, notes)


def _judged(reached: float, goal: float, *, most: bool = False, form: str = "g") -> str:
    met = reached <= goal if most else reached >= goal
    bound = f"at {'most' if most else 'least'} {goal:{form}}"
    return f"the goal is {bound}: {'reached' if met else 'missed'}."


class Costs:
    """Costs of steps of several tokens, over those of one in the same round."""

    def __init__(self, rows: pd.DataFrame) -> None:
        self._rows = rows
        seconds = {int(row.tokens): np.array(row.samples) for row in rows.itertuples()}
        self.quartiles = {
            tokens: [
                float(q) for q in np.quantile(taken / seconds[min(seconds)], (0.25, 0.5, 0.75))
            ]
            for tokens, taken in seconds.items()
        }

    def of(self, tokens: int) -> float:
        """The median; between two measured numbers of tokens by linear interpolation."""
        known = sorted(self.quartiles)
        return float(np.interp(tokens, known, [self.quartiles[n][1] for n in known]))

    def table(self, anchor: str, caption: str) -> Table:
        columns: dict[str, Column] = {
            "Tokens": "tokens",
            "ms a step": lambda row: number(1e3 * row.median),
            "Of a step of 1": lambda row: number(self.quartiles[row.tokens][1]),
            "Quartiles": lambda row: text("{0:.2f} to {2:.2f}".format(*self.quartiles[row.tokens])),
        }
        return table(anchor, caption, self._rows.itertuples(), columns, top=0)

    def plot(self, anchor: str, caption: str) -> list[Plot]:
        marks = [
            {"name": "measured", "x": tokens, "low": low, "value": middle, "high": high}
            for tokens, (low, middle, high) in self.quartiles.items()
        ]
        marks.append({"name": "goal", "x": VERIFY_TOKENS, "value": VERIFY_GOAL})
        titled = pd.DataFrame(marks).assign(title="times a step of one token")
        ticks = {float(tokens): f"{tokens}" for tokens in self.quartiles}
        return panels(anchor, caption, titled, "tokens of a step", ticks)

    def goal(self) -> Iterator[str]:
        if VERIFY_TOKENS in self.quartiles:
            low, middle, high = self.quartiles[VERIFY_TOKENS]
            yield (
                f"a step of {VERIFY_TOKENS} tokens costs {middle:.2f} of one of 1, quartiles"
                f" {low:.2f} and {high:.2f}; {_judged(middle, VERIFY_GOAL, most=True)}"
            )


def _ways(rows: pd.DataFrame, costs: Costs | None) -> pd.DataFrame:
    """Ways to write that took turns: the speedup of each over the plain one above it, and for
    synthetic drafts the formula's, without and with the measured cost of verifying."""
    steps = rows[rows["phase"] == races.A_STEP].set_index("test")["median"]
    ways = rows[(rows["phase"] == "run") & (rows["unit"] == "s")]
    drafts = [Synthetic.named(name) for name in ways["test"]]
    verifying = [costs.of(d.gamma + 1) if d and costs else np.nan for d in drafts]
    base, faster = ways["samples"].iloc[0], list[Ratio | None]()
    for way in ways.itertuples():
        plain = way.test.endswith(races.PLAIN)
        base = way.samples if plain else base
        faster.append(None if plain else ratio(base, way.samples, together=TOGETHER))
    return ways.assign(
        tokens_a_step=ways["test"].map(steps),
        faster=pd.Series(faster, ways.index, dtype=object),
        drafts=pd.Series(drafts, ways.index, dtype=object),
        formula=[d.speedup() if d else np.nan for d in drafts],
        verifying=verifying,
        verified=[d.speedup(v) if d else np.nan for d, v in zip(drafts, verifying, strict=True)],
    )


def _reached(found: Ratio | None, allowed: float) -> Cell:
    """Share of the formula's speedup that was reached."""
    if not found or not np.isfinite(allowed):
        return NONE
    return share(found.scaled(1 / allowed))


def _race_table(anchor: str, caption: str, ways: pd.DataFrame) -> Table:
    columns: dict[str, Column] = {
        "Way": "test",
        "ms a token": lambda way: number(1e3 * way.median),
        "Tokens a step": "tokens_a_step", "Times plain": field("faster", times),
        "Formula": "formula", "Of it": lambda way: _reached(way.faster, way.formula),
        "Verifying": "verifying", "With verifying": "verified",
        "Of that": lambda way: _reached(way.faster, way.verified),
    }  # fmt: skip
    return table(anchor, caption, ways.itertuples(), columns, top=0).with_what_there_is()


def _curve(anchor: str, caption: str, ways: pd.DataFrame) -> list[Plot]:
    """Speedup by acceptance, measured and by the formula."""
    ways = ways[ways["drafts"].notna()]
    drafts, cost = ways[["drafts", "verifying"]].iloc[0]
    marks = [
        {"name": "measured", "x": way.drafts.alpha, **asdict(way.faster)}
        for way in ways.itertuples()
    ]
    for name, each in (("the formula", 1.0), ("the formula with verifying", cost)):
        if np.isfinite(each):
            marks += [
                {"name": name, "x": alpha, "value": replace(drafts, alpha=alpha).speedup(each)}
                for alpha in GRID
            ]
    titled = pd.DataFrame(marks).assign(title=f"times plain, drafts of {drafts.gamma} tokens")
    ticks = {alpha: f"{alpha:g}" for alpha in GRID[::2]}
    return panels(anchor, caption, titled, "alpha, the acceptance of a token", ticks)


def _goals(kind: str, ways: pd.DataFrame) -> Iterator[str]:
    """Each goal, and whether it was reached."""
    if kind == races.FORMULA:
        yield from _goals_of_the_formula(ways[ways["drafts"].notna()])
    elif kind == races.PAIR:
        best = ways.loc[ways["tokens_a_step"].where(ways["faster"].notna()).idxmax()]
        most = best["tokens_a_step"]
        yield f"most tokens a step: {most:.2f} ({best['test']}); {_judged(most, PAIR_GOAL)}"
    elif kind == races.LOOKUP:
        for faster in ways["faster"][ways["test"] == races.COPIED]:
            told = f"{faster.value:.2f} times as fast as plain"
            yield f"{told}; {_judged(faster.value, LOOKUP_GOAL)}"


def _goals_of_the_formula(ways: pd.DataFrame) -> Iterator[str]:
    """For each acceptance and cost, with the fastest draft length, as a drafter would choose."""
    alike = [(drafts.alpha, drafts.c) for drafts in ways["drafts"]]
    speeds = pd.Series([faster.value for faster in ways["faster"]], ways.index)
    for best in speeds.groupby(pd.Series(alike, ways.index), sort=False).idxmax():
        drafts, reached = ways["drafts"][best], speeds[best] / ways["formula"][best]
        yield (
            f"with alpha {drafts.alpha:g} and c {drafts.c:g} drafts of {drafts.gamma} are"
            f" fastest: {reached:.0%} of the formula; {_judged(reached, FORMULA_GOAL, form='.0%')}"
        )


def _union_table(anchor: str, caption: str, rows: pd.DataFrame) -> Table:
    shares = rows.set_index(["tokens", "phase"])["median"].unstack()
    columns: dict[str, Column] = {
        "Tokens": "Index",
        "Active": field("run", percent),
        "If independent": field(races.INDEPENDENT, percent),
        "1 − (1 − s)^k": field(races.ALIKE, percent),
    }
    return table(anchor, caption, shares.itertuples(), columns, top=0)


def _union_plot(anchor: str, caption: str, rows: pd.DataFrame) -> list[Plot]:
    """Active neurons by the tokens of a step."""
    named = {"run": "measured", races.INDEPENDENT: "if independent", races.ALIKE: "1 − (1 − s)^k"}
    marks = rows.assign(
        title="neurons that any token needs, %", name=rows["phase"].map(named), x=rows["tokens"],
        value=100 * rows["median"],
    ).drop(columns=["low", "high"])  # fmt: skip
    ticks = {float(n): str(n) for n in rows["tokens"].unique()}
    return panels(anchor, caption, marks, "tokens of a step", ticks)
