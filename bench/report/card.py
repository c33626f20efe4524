"""The speed card: every figure that has a goal, and its background."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from bench.contenders.contender import FAST, OURS
from bench.figures import FULL, LINEAR_STREAM, QUICK, READING, STEP_STREAM, Card
from bench.race.ratio import Ratio, quotient, ratio
from bench.report.cells import NONE, Cell, field, goal, percent, text
from bench.report.lookup import Measured, family, faster, present, sizes, times
from bench.report.plots import label
from bench.report.steps import WHOLE, of_phase
from bench.report.table import Section, Table, table
from bench.report.words import digits, duration, plural
from bench.targets import Target, target, targets

BENCHES = ("engine", "stream", "scaling", "memory", "gap", "empty step")
PEER = "llama.cpp"
ALLOWANCE = 400e6  # bytes besides the file and the cache
KINDS = {
    "linear": "linear nodes",
    "quantise_activations": "quantising",
    "quantise_activations_256": "quantising",
    "attention": "attention",
}
LEAD = (
    "Ratios of medians with their 95% bootstrap intervals. Speeds of two engines, of two numbers of"
    " sequences and of two numbers of threads took turns, and what is above 1 is faster. A figure"
    " passes at its goal; one whose interval holds the goal might fall on its other side next time."
)


@dataclass(frozen=True, slots=True)
class Figure:
    """A ratio, if it was measured, and its goal in this model, if any."""

    model: str
    name: str
    ratio: Ratio | None
    target: Target | None


class Rows:
    """One model's rows of a run, by test and contender."""

    def __init__(self, rows: pd.DataFrame) -> None:
        self.threads = int(rows["threads"].max())
        self._rows = {(m.bench, m.test, m.contender, m.threads): m for m in rows.itertuples()}

    def get(
        self, bench: str, test: str, by: str = OURS, threads: int | None = None
    ) -> Measured | None:
        return self._rows.get((bench, test, by, threads or self.threads))

    def of(self, bench: str) -> list[Measured]:
        return [m for m in self._rows.values() if m.bench == bench]

    def speed(
        self, test: str, by: str, than: str, slower: str = ""
    ) -> tuple[Measured, Measured] | None:
        """The rows of `by` at `test` and of `than` at `slower`, by default the same test."""
        a, b = self.get("engine", test, by), self.get("engine", slower or test, than)
        return (a, b) if a and b else None


def models(rows: pd.DataFrame) -> dict[str, Rows]:
    """Models, each on the most threads that it was raced or profiled with."""
    shown = present(rows[rows["bench"].isin(BENCHES)])
    return {str(model): Rows(part) for model, part in shown.groupby("model", sort=False)}


def figures(rows: pd.DataFrame) -> list[Figure]:
    """All figures of this run, by model."""
    found = []
    for model, mine in models(rows).items():
        for card in (FULL, QUICK):
            for name, value in _figures(mine, card):
                found.append(Figure(model, name, value, target(name, *family(model))))
    return found


def unmeasured(rows: pd.DataFrame, found: Sequence[Figure]) -> list[tuple[str, Target]]:
    """Goals of the run's models without a figure."""
    judged = {(figure.model, figure.target) for figure in found}
    goals = [(model, wanted) for model in models(rows) for wanted in targets(*family(model))]
    return [wanted for wanted in goals if wanted not in judged]


def _figures(rows: Rows, card: Card) -> Iterator[tuple[str, Ratio]]:
    for test in (card.generation.name, card.prompt.name):
        for by, said in ((OURS, ""), (FAST, " fast")):
            if pair := rows.speed(test, by, PEER):
                yield f"{test}{said} ÷ {PEER}", faster(*pair)
    deep, shallow = (rows.speed(t.name, OURS, PEER) for t in (card.deep, card.shallow))
    if deep and shallow:
        samples = [(b.samples, a.samples) for a, b in (deep, shallow)]
        name = f"{card.deep.name} ÷ d{card.shallow.depth}, ÷ the same of {PEER}"
        yield name, quotient(samples[0], samples[1], together=1)
    many, one = (f"{test.name} generation" for test in (card.many, card.one))
    for by, said in ((OURS, ""), (PEER, f", {PEER}")):
        if pair := rows.speed(many, by, by, one):
            more = card.many.parallel / card.one.parallel
            yield f"{card.many.parallel} sequences ÷ 1{said}", faster(*pair).scaled(more)
    alone, together = (rows.get("scaling", card.prompt.name, threads=n) for n in (1, None))
    if alone and together and rows.threads > 1:
        name = f"{card.prompt.name} on {rows.threads} threads ÷ 1"
        yield name, faster(together, alone)
    if card is FULL:  # what follows has no sizes of its own
        yield from _of_the_machine(rows)


def _of_the_machine(rows: Rows) -> Iterator[tuple[str, Ratio]]:
    step, alone = (rows.get("stream", STEP_STREAM, by) for by in (OURS, READING))
    if step and alone:
        yield "weights streamed ÷ reading them alone", faster(step, alone)
    for m in rows.of("memory"):
        allowed = sum(sizes(m.shape).values()) + ALLOWANCE
        name = f"peak memory ÷ (file + cache + {ALLOWANCE / 1e6:.0f} MB)"
        yield name, ratio(m.samples, [allowed])


def card(found: Sequence[Figure], missing: Sequence[tuple[str, Target]] = ()) -> Table:
    """Figures with a goal first, each model's together; goals without a figure; then the rest."""
    without = [Figure(model, wanted.figure, None, wanted) for model, wanted in missing]
    judged = [figure for figure in found if figure.target]
    others = [figure for figure in found if not figure.target]
    return table(
        "card",
        "Figures against their goals",
        [*judged, *without, *others],
        {
            "Model": "model", "Figure": "name", "Measured": field("ratio", times),
            "Goal": field("target", goal), "Verdict": _verdict,
        },
        top=0,
    )  # fmt: skip


def _verdict(figure: Figure) -> Cell:
    if not figure.target:
        return NONE
    if not figure.ratio:
        return text("not measured")
    value, met = figure.ratio.value, figure.target.met(figure.ratio.value)
    open_ = figure.ratio.low <= figure.target.goal <= figure.ratio.high
    words = "pass" if met else f"miss by {100 * abs(value / figure.target.goal - 1):.0f}%"
    remark = "the interval holds the goal" if open_ else ""
    return text(words + (", open" if open_ else ""), "good" if met else "bad", remark)


def behind(rows: pd.DataFrame) -> Table:
    """Background of the figures: TOP/s and shares of a prompt, bytes, empty steps, gaps."""
    prompts = of_phase(rows, "prompt")
    told = [
        {"Model": text(model), "What": text(what), "Measured": text(measured)}
        for model, mine in models(rows).items()
        for what, measured in (*_rates(mine), *_prompt(prompts, model, mine.threads))
    ]
    caption = "What stands behind the figures"
    return Table("card-behind", caption, pd.DataFrame(told), top=0, words=True)


def _rates(rows: Rows) -> Iterator[tuple[str, str]]:
    for test, by in ((STEP_STREAM, OURS), (LINEAR_STREAM, OURS), (STEP_STREAM, READING)):
        if m := rows.get("stream", test, by):
            speeds = (digits(m.bytes / seconds / 1e9) for seconds in (m.median, m.limit_seconds))
            who = "by reading them alone, in turns" if by == READING else f"by a decode's {test}"
            yield f"Weights streamed {who}", "{} GB/s; at best {} ({})".format(*speeds, m.limit)
    for by in (OURS, PEER):
        pair = rows.speed(FULL.deep.name, by, by, FULL.shallow.name)
        if pair:
            kept = percent(pair[1].median / pair[0].median).text
            said = f"{kept} of its speed at depth {FULL.shallow.depth}"
            yield f"What {label(by)} keeps at depth {FULL.deep.depth:,}", said
    for m in rows.of("memory"):
        parts = ", ".join(f"{name} {digits(size / 1e6)}" for name, size in sizes(m.shape).items())
        yield f"Peak memory ({m.test})", f"{digits(m.median / 1e6)} MB, of which {parts}"
    for m in rows.of("gap"):
        yield f"Fast numerics' logits after {m.test}", f"NMSE {digits(m.median)} from the default"
    empty = sorted(rows.of("empty step"), key=lambda m: m.threads)
    if empty:
        times = ", ".join(f"{duration(m.median)} on {plural(m.threads, 'thread')}" for m in empty)
        calls, stages = (sizes(empty[0].shape)[name] for name in ("calls", "stages"))
        yield f"An empty step: {calls} calls in {stages} stages", times


def _prompt(prompts: pd.DataFrame, model: str, threads: int) -> Iterator[tuple[str, str]]:
    """A prompt's step: the speed of its products, and where the rest of its time goes."""
    nodes = prompts[(prompts["model"] == model) & (prompts["threads"] == threads)]
    if not len(nodes):
        return
    whole = nodes[nodes["test"] == WHOLE]
    step = f"pp{whole['tokens'].iloc[0]}" if len(whole) else "a prompt"
    linear = nodes[nodes["test"] == "linear"]
    if len(linear):
        seconds, limits = linear["median"].sum(), linear["limit_seconds"]
        share = f", {percent(limits.sum() / seconds).text} of the limit" if limits.all() else ""
        rate = linear["operations"].sum() / seconds / 1e12
        yield f"Linear nodes of {step}", f"{digits(rate)} TOP/s{share}"
    taken = nodes.groupby("test")["of_step"].sum()
    shares = dict.fromkeys(KINDS.values(), 0.0)
    for kind, name in KINDS.items():
        shares[name] += float(taken.get(kind, 0.0))
    shares["the rest"] = 1 - sum(shares.values())
    said = ", ".join(f"{name} {percent(share).text}" for name, share in shares.items())
    yield f"Where the time of {step} goes", said


def section(rows: pd.DataFrame) -> Section:
    found = figures(rows)
    tables = (card(found, unmeasured(rows, found)), behind(rows))
    return Section("card", "Goals", LEAD, tables=tables)
