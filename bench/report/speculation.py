"""The section on drafts: what ways to write came to, beside what the formula allows."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from bench.ratio import Ratio, ratio
from bench.report.lookup import Measured, share, times
from bench.report.plots import Line, Mark, panels
from bench.report.table import (
    Cell,
    Column,
    Plot,
    Section,
    Table,
    count,
    number,
    percent,
    plural,
    table,
    text,
)
from bench.speculation.races import (
    A_STEP,
    ALIKE,
    BENCH,
    COPIED,
    CURVE,
    FORMULA,
    INDEPENDENT,
    LOOKUP,
    PAIR,
    PLAIN,
    SPARSE,
    UNION,
    VERIFY,
    Synthetic,
)

TOGETHER = 3  # rounds that are drawn as one
VERIFY_TOKENS, VERIFY_GOAL = 5, 1.35
FORMULA_GOAL, PAIR_GOAL, LOOKUP_GOAL = 0.85, 1.5, 2.0
TITLES = {
    VERIFY: "steps of several tokens",
    FORMULA: "a synthetic drafter",
    CURVE: "a synthetic drafter, by acceptance",
    PAIR: "a draft model",
    LOOKUP: "prompt lookup where a passage is copied",
    SPARSE: "drafts where neurons are skipped",
    UNION: "neurons that a step's tokens need together",
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
    mine = rows[rows["bench"] == BENCH]
    tables, plots, notes = list[Table](), list[Plot](), list[str]()
    costs: dict[str, Costs] = {}
    for _, part in mine.groupby(["model", "shape", "rivals"], sort=False):
        first = part.iloc[0]
        kind, i = first["shape"].partition(" ")[0], len(tables)
        name = f"{first['model']}: {TITLES.get(kind, kind)}"
        anchor = f"speculation-{i}"
        caption = f"{name}, on {plural(int(first['threads']), 'thread')}"
        if kind == VERIFY:
            found = costs[first["model"]] = Costs(part)
            tables.append(found.table(anchor, f"{caption}, {first['shape'].partition(' ')[2]}"))
            plots.append(found.plot(f"plot-{anchor}", name))
            notes += [f"{name}: {line}" for line in found.goal()]
        elif kind == UNION:
            tokens = part["test"].str.rpartition(" ")[2].astype(int)
            shares = part.set_index([tokens, "phase"])["median"].unstack()
            shares = shares.reindex(columns=["run", INDEPENDENT, ALIKE])
            tables.append(_union_table(anchor, caption, shares))
            plots.append(_union_plot(f"plot-{anchor}", name, shares))
        else:
            race = Race(kind, part, costs.get(first["model"]))
            tables.append(race.table(anchor, caption))
            plots += [race.plot(f"plot-{anchor}", name)] if kind == CURVE else []
            notes += [f"{name}: {line}" for line in race.goals()]
            notes += [f"{name}: {first['settings']}."] if first["settings"] else []
    return Section("speculation", TITLE, LEAD, tuple(plots), tuple(tables), tuple(notes))


def _goal(reached: bool) -> str:
    return "reached" if reached else "missed"


def _flat(values: Sequence[float]) -> tuple[Mark, ...]:
    return tuple(Mark(float(value), float(value), float(value)) for value in values)


class Costs:
    """What steps of several tokens cost, over those of one in the same round."""

    def __init__(self, rows: pd.DataFrame) -> None:
        self._rows = rows
        seconds = {int(row.tokens): np.array(row.samples) for row in rows.itertuples()}
        ratios = {tokens: taken / seconds[min(seconds)] for tokens, taken in seconds.items()}
        self.quartiles = {
            tokens: [float(q) for q in np.quantile(found, (0.25, 0.5, 0.75))]
            for tokens, found in ratios.items()
        }

    def of(self, tokens: int) -> float:
        """The median; between two numbers of tokens that were measured on the line through both."""
        known = sorted(self.quartiles)
        return float(np.interp(tokens, known, [self.quartiles[n][1] for n in known]))

    def table(self, anchor: str, caption: str) -> Table:
        def spread(row: Measured) -> Cell:
            low, _, high = self.quartiles[row.tokens]
            return text(f"{low:.2f} to {high:.2f}")

        columns: dict[str, Column] = {
            "Tokens": lambda row: count(row.tokens),
            "ms a step": lambda row: number(1e3 * row.median),
            "Of a step of 1": lambda row: number(self.quartiles[row.tokens][1]),
            "Quartiles": spread,
        }
        return table(anchor, caption, self._rows.itertuples(), columns, top=len(self._rows))

    def plot(self, anchor: str, name: str) -> Plot:
        marks = tuple(Mark(q[1], q[0], q[2]) for q in self.quartiles.values())
        x = tuple(map(float, self.quartiles))
        goal = Line("goal", (float(VERIFY_TOKENS),), _flat([VERIFY_GOAL]))
        titled = {"times a step of one token": [Line("measured", x, marks), goal]}
        ticks = {tokens: f"{tokens:g}" for tokens in x}
        return panels(anchor, f"{name}: what verifying costs", titled, "tokens of a step", ticks)

    def goal(self) -> Iterator[str]:
        if VERIFY_TOKENS in self.quartiles:
            low, middle, high = self.quartiles[VERIFY_TOKENS]
            yield (
                f"a step of {VERIFY_TOKENS} tokens costs {middle:.2f} of one of 1, quartiles"
                f" {low:.2f} and {high:.2f}; the goal is at most {VERIFY_GOAL:g}:"
                f" {_goal(middle <= VERIFY_GOAL)}."
            )


class Race:
    """Ways to write that took turns, each beside the plain one above it."""

    def __init__(self, kind: str, rows: pd.DataFrame, costs: Costs | None) -> None:
        self._kind, self._costs = kind, costs
        steps = rows[rows["phase"] == A_STEP].set_index("test")["median"]
        self.ways = rows[(rows["phase"] == "run") & (rows["unit"] == "s")].copy()
        self.ways["tokens_a_step"] = self.ways["test"].map(steps)
        ways = {way.test: way for way in self.ways.itertuples()}
        base, self._faster = next(iter(ways)), dict[str, Ratio | None]()
        for name, way in ways.items():
            if name.endswith(PLAIN):
                base, self._faster[name] = name, None
            else:
                self._faster[name] = ratio(ways[base].samples, way.samples, together=TOGETHER)

    def reached(self, name: str, verified: bool = False) -> Ratio | None:
        """Of what the formula allows, with the measured cost of verifying if that is asked for."""
        found, allowed = self._faster[name], self.allowed(name, verified)
        if not found or not np.isfinite(allowed):
            return None
        return Ratio(found.value / allowed, found.low / allowed, found.high / allowed)

    def allowed(self, name: str, verified: bool = False) -> float:
        drafts = Synthetic.named(name)
        if not drafts:
            return np.nan
        return drafts.speedup(self._verifying(name)) if verified else drafts.speedup()

    def _verifying(self, name: str) -> float:
        drafts = Synthetic.named(name)
        return self._costs.of(drafts.gamma + 1) if drafts and self._costs else np.nan

    def table(self, anchor: str, caption: str) -> Table:
        columns: dict[str, Column] = {
            "Way": lambda way: text(way.test),
            "ms a token": lambda way: number(1e3 * way.median),
            "Tokens a step": lambda way: number(way.tokens_a_step),
            "Times plain": lambda way: times(self._faster[way.test]),
            "Formula": lambda way: number(self.allowed(way.test)),
            "Of it": lambda way: share(self.reached(way.test)),
            "Verifying": lambda way: number(self._verifying(way.test)),
            "With verifying": lambda way: number(self.allowed(way.test, verified=True)),
            "Of that": lambda way: share(self.reached(way.test, verified=True)),
        }
        rows = self.ways.itertuples()
        return table(anchor, caption, rows, columns, top=len(self.ways)).with_what_there_is()

    def plot(self, anchor: str, name: str) -> Plot:
        """Speed by acceptance, measured and by the formula."""
        drafted = [d for way in self.ways["test"] if (d := Synthetic.named(way))]
        found = [self._faster[drafts.name] for drafts in drafted]
        marks = tuple(Mark(f.value, f.low, f.high) for f in found if f)
        lines = [Line("measured", tuple(d.alpha for d in drafted), marks)]
        grid = tuple(map(float, np.linspace(0, 1, 11)))
        every = [replace(drafted[0], alpha=alpha) for alpha in grid]
        lines.append(Line("the formula", grid, _flat([d.speedup() for d in every])))
        if self._costs:
            cost = self._costs.of(drafted[0].gamma + 1)
            allowed = _flat([d.speedup(cost) for d in every])
            lines.append(Line("the formula with verifying", grid, allowed))
        ticks = {alpha: f"{alpha:g}" for alpha in grid[::2]}
        titled = {f"times plain, drafts of {drafted[0].gamma} tokens": lines}
        return panels(anchor, name, titled, "alpha, the acceptance of a token", ticks)

    def goals(self) -> Iterator[str]:
        """What was to be reached, and whether it was."""
        rates = self.ways.set_index("test")["tokens_a_step"]
        if self._kind == FORMULA:
            yield from self._goals_of_the_formula()
        elif self._kind == PAIR:
            drafted = rates[[not name.endswith(PLAIN) for name in rates.index]]
            yield (
                f"most tokens a step: {drafted.max():.2f} ({drafted.idxmax()}); the goal is at"
                f" least {PAIR_GOAL:g}: {_goal(drafted.max() >= PAIR_GOAL)}."
            )
        elif self._kind == LOOKUP and (faster := self._faster[COPIED]):
            yield (
                f"{faster.value:.2f} times as fast as plain; the goal is at least {LOOKUP_GOAL:g}:"
                f" {_goal(faster.value >= LOOKUP_GOAL)}."
            )

    def _goals_of_the_formula(self) -> Iterator[str]:
        """For each acceptance and cost, of the length that was fastest, as who drafts would
        choose."""
        best: dict[tuple[float, float], tuple[Ratio, Synthetic]] = {}
        for name, faster in self._faster.items():
            if faster and (drafts := Synthetic.named(name)):
                known = best.setdefault((drafts.alpha, drafts.c), (faster, drafts))
                if faster.value > known[0].value:
                    best[drafts.alpha, drafts.c] = faster, drafts
        for faster, drafts in best.values():
            reached = faster.value / drafts.speedup()
            yield (
                f"with alpha {drafts.alpha:g} and c {drafts.c:g} drafts of {drafts.gamma} are"
                f" fastest: {reached:.0%} of the formula; the goal is at least {FORMULA_GOAL:.0%}:"
                f" {_goal(reached >= FORMULA_GOAL)}."
            )


def _union_table(anchor: str, caption: str, shares: pd.DataFrame) -> Table:
    columns: dict[str, Column] = {
        "Tokens": lambda row: count(row.Index),
        "Active": lambda row: percent(row.run),
        "If independent": lambda row: percent(row.independent),
        "1 − (1 − s)^k": lambda row: percent(row.alike),
    }
    return table(anchor, caption, shares.itertuples(), columns, top=len(shares))


def _union_plot(anchor: str, name: str, shares: pd.DataFrame) -> Plot:
    """Active neurons by the tokens of a step."""
    x = tuple(map(float, shares.index))
    named = {"run": "measured", INDEPENDENT: "if independent", ALIKE: "1 − (1 − s)^k"}
    lines = [Line(label, x, _flat(100 * shares[phase])) for phase, label in named.items()]
    titled = {"neurons that any token needs, %": lines}
    return panels(anchor, name, titled, "tokens of a step", {n: f"{n:g}" for n in x})
