"""The section on serving many prompts: results of each load, beside its goal."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bench.contenders.contender import OURS
from bench.race.ratio import Ratio, ratio
from bench.report.cells import Cell, Column, field, goal, text
from bench.report.lookup import Measured, absences, faster, sizes, times
from bench.report.table import Section, Table, table
from bench.report.words import digits, plural
from bench.targets import Target

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
    """What was measured, as a ratio, and its goal, which has its name."""

    told: str
    ratio: Ratio
    target: Target


def section(rows: pd.DataFrame) -> Section:
    """A table for each model and number of threads, and a line for who is absent."""
    mine = rows[rows["bench"] == BENCH]
    tables = list[Table]()
    for i, ((model, threads), part) in enumerate(mine.groupby(["model", "threads"], sort=False)):
        found = list(_figures(part))
        caption = f"{model}, on {plural(int(threads), 'thread')}"
        columns: dict[str, Column] = {
            "What": lambda f: text(f.target.figure),
            "Measured": "told",
            "Ratio": field("ratio", times),
            "Goal": field("target", goal),
            "Verdict": _verdict,
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
        yield Figure(told, faster(ours, theirs), Target(f"{load}, over llama.cpp", 1.3))
    if len(steps := of(STEP)) == 2:
        many, one = steps
        more = many.tokens / one.tokens
        told = " and ".join(f"{1e3 * row.median:.1f} ms" for row in steps) + " a step"
        what = f"{many.tokens} sequences decode, over one"
        yield Figure(told, faster(many, one).scaled(more), Target(what, more / 2))
    for row in of(OWN):
        what = f"The scheduler's part of a step of {sizes(row.shape)['sequences']}"
        share = f"{row.median:.2%}"
        yield Figure(share, ratio(row.samples, [1.0]), Target(what, 0.02, most=True))
    if len(mixed := of(MIXED)) == 2:
        alone, among = (np.array(row.samples) for row in mixed)
        both, middle = np.concatenate([alone, among]), 1e3 * np.median(alone)
        late = float(np.quantile(both, 0.95) / np.median(alone))
        told = f"{len(both)} steps, {middle:.1f} ms without prompts, at most {1e3 * both.max():.1f}"
        what = f"95th percentile of steps {mixed[1].settings}, over the median without"
        yield Figure(told, Ratio(late, late, late), Target(what, 3, most=True))
    for row in of(PREFIX):
        told = f"{row.median:,.0f} tokens evaluated, {row.tokens:,} are needed"
        what = f"A beginning that {sizes(row.shape)['sequences']} prompts share"
        least = ratio(row.samples, [float(row.tokens)])
        yield Figure(told, least, Target(what, 1, most=True))
    for alone, bare in zip(of(ALONE), of(BARE), strict=False):
        told = f"{1e3 * alone.median:.0f} ms, bare steps {1e3 * bare.median:.0f} ms"
        over = Target("generate of one prompt, over bare steps", 1.05, most=True)
        yield Figure(told, faster(bare, alone), over)


def _verdict(figure: Figure) -> Cell:
    met = figure.target.met(figure.ratio.value)
    return text("pass" if met else "miss", "good" if met else "bad")
