"""The section on serving many prompts: results of each load, beside its goal."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bench.contenders.contender import OURS
from bench.race.ratio import Ratio, ratio
from bench.report.cells import Cell, Column, field, text
from bench.report.lookup import Measured, absences, faster, sizes, times
from bench.report.table import Section, Table, table
from bench.report.words import digits, plural

BENCH, PEER = "serving", "llama.cpp"
ARRIVING, STEP, OWN, MIXED, PREFIX = "arriving", "step", "own share", "mixed", "prefix"
ALONE, BARE = "alone", "bare steps"
ANSWERS = "answers alone"  # steps of a mixed load that read no prompt
TITLE = "Many prompts at once"
LEAD = (
    "Random tokens, the likeliest ones drawn, nothing ends early. What is compared took turns;"
    " ratios of medians with their 95% bootstrap intervals. llama-batched-bench draws nothing and"
    " keeps no text."
)


@dataclass(frozen=True, slots=True)
class Figure:
    """A measurement's name, its ratio, and its goal: at least, or at most."""

    what: str
    told: str
    ratio: Ratio
    goal: float
    most: bool = False

    @property
    def verdict(self) -> Cell:
        met = self.ratio.value <= self.goal if self.most else self.ratio.value >= self.goal
        return text(*(("pass", "good") if met else ("miss", "bad")))


def section(rows: pd.DataFrame) -> Section:
    """A table for each model and number of threads, and a line for who is absent."""
    mine = rows[rows["bench"] == BENCH]
    tables = list[Table]()
    for i, ((model, threads), part) in enumerate(mine.groupby(["model", "threads"], sort=False)):
        found = list(_figures(part))
        caption = f"{model}, on {plural(int(threads), 'thread')}"
        columns: dict[str, Column] = {
            "What": "what",
            "Measured": "told",
            "Ratio": field("ratio", times),
            "Goal": lambda f: Cell(f"{'≤' if f.most else '≥'} {f.goal:g}", f.goal),
            "Verdict": lambda f: f.verdict,
        }
        tables.append(table(f"serving-{i}", caption, found, columns, top=0, words=True))
    return Section("serving", TITLE, LEAD, tables=tables, notes=absences(rows, BENCH))


def _figures(rows: pd.DataFrame) -> Iterator[Figure]:
    taken = rows[rows["median"].notna()]

    def of(test: str, by: str = OURS) -> list[Measured]:
        found = taken[(taken["test"] == test) & (taken["contender"] == by)]
        return list(found.itertuples())

    for ours, theirs in zip(of(ARRIVING), of(ARRIVING, PEER), strict=False):
        speeds = [f"{digits(row.tokens / row.median)}" for row in (ours, theirs)]
        load = "{sequences} prompts of {prompt} tokens, answers of {answer}".format(
            **sizes(ours.shape)
        )
        told = "{} tokens/s, llama.cpp {}".format(*speeds)
        yield Figure(f"{load}, over llama.cpp", told, faster(ours, theirs), 1.3)
    if len(steps := of(STEP)) == 2:
        many, one = steps
        more = many.tokens / one.tokens
        told = " and ".join(f"{1e3 * row.median:.1f} ms" for row in steps) + " a step"
        what = f"{many.tokens} sequences decode, over one"
        yield Figure(what, told, faster(many, one).scaled(more), more / 2)
    for row in of(OWN):
        what = f"The scheduler's part of a step of {sizes(row.shape)['sequences']}"
        yield Figure(what, f"{row.median:.2%}", ratio(row.samples, [1.0]), 0.02, most=True)
    if len(mixed := of(MIXED)) == 2:
        alone, among = (np.array(row.samples) for row in mixed)
        both, middle = np.concatenate([alone, among]), 1e3 * np.median(alone)
        late = float(np.quantile(both, 0.95) / np.median(alone))
        told = f"{len(both)} steps, {middle:.1f} ms without prompts, at most {1e3 * both.max():.1f}"
        what = f"95th percentile of steps {mixed[1].settings}, over the median without"
        yield Figure(what, told, Ratio(late, late, late), 3, most=True)
    for row in of(PREFIX):
        told = f"{row.median:,.0f} tokens evaluated, {row.tokens:,} are needed"
        what = f"A beginning that {sizes(row.shape)['sequences']} prompts share"
        yield Figure(what, told, ratio(row.samples, [float(row.tokens)]), 1, most=True)
    for alone, bare in zip(of(ALONE), of(BARE), strict=False):
        told = f"{1e3 * alone.median:.0f} ms, bare steps {1e3 * bare.median:.0f} ms"
        yield Figure(
            "generate of one prompt, over bare steps", told, faster(bare, alone), 1.05, most=True
        )
