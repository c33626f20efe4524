"""The speed card: every figure that has a goal, and what stands behind the figures."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.contenders.contender import FAST, OURS
from bench.figures import FULL, LINEAR_STREAM, QUICK, READING, STEP_STREAM, Card
from bench.ratio import Ratio, quotient, ratio
from bench.report.drawing import label
from bench.report.lookup import engine_model, family, present, sizes
from bench.report.steps import WHOLE, of_phase, whole
from bench.report.table import Cell, Row, Section, Table, digits, duration, percent, plural, text
from bench.results import Measurement, Run
from bench.targets import Target, target, targets

PEER = "llama.cpp"
ALLOWANCE = 400e6  # bytes beside the file and the cache
KINDS = {"linear": "linear nodes", "quantise_activations": "quantising", "attention": "attention"}
LEAD = (
    "Ratios of medians with their 95% bootstrap intervals. Speeds of two engines, of two numbers of"
    " sequences and of two numbers of threads took turns, and what is above 1 is faster. A figure"
    " passes at its goal; one whose interval holds the goal might fall on its other side next time."
)


@dataclass(frozen=True, slots=True)
class Figure:
    """A ratio, and the goal that it has in this model, if any."""

    model: str
    name: str
    ratio: Ratio
    target: Target | None

    @property
    def met(self) -> bool | None:
        """None where there is no goal."""
        if self.target is None:
            return None
        value, goal = self.ratio.value, self.target.goal
        return value <= goal if self.target.most else value >= goal


class Rows:
    """One model's rows of a run, by what was measured and who did it."""

    def __init__(self, rows: Sequence[Measurement], threads: int) -> None:
        self.threads = threads
        self._rows = {(m.bench, m.test, m.contender, m.threads): m for m in rows}

    def get(
        self, bench: str, test: str, by: str = OURS, threads: int | None = None
    ) -> Measurement | None:
        return self._rows.get((bench, test, by, threads or self.threads))

    def of(self, bench: str) -> list[Measurement]:
        return [m for m in self._rows.values() if m.bench == bench]

    def speed(
        self, test: str, by: str, than: str, slower: str = ""
    ) -> tuple[Measurement, Measurement] | None:
        """The rows of a race whose ratio of seconds is how many times as fast `by` is at `test` as
        `than` at `slower`, by default the same test."""
        a, b = self.get("engine", slower or test, than), self.get("engine", test, by)
        return (a, b) if a and b else None


def models(run: Run) -> dict[str, Rows]:
    """On the most threads that a model was raced or looked at with."""
    found: dict[str, list[Measurement]] = {}
    for m in present(run.measurements):
        if m.bench in ("engine", "stream", "scaling", "memory", "gap", "empty step"):
            found.setdefault(engine_model(m.model), []).append(m)
    return {name: Rows(rows, max(m.threads for m in rows)) for name, rows in found.items()}


def figures(run: Run) -> list[Figure]:
    """All that this run has, by model."""
    found = []
    for model, rows in models(run).items():
        for card in (FULL, QUICK):
            for name, value in _figures(rows, card):
                found.append(Figure(model, name, value, target(name, *family(model))))
    return found


def unmeasured(run: Run, found: Sequence[Figure]) -> list[tuple[str, Target]]:
    """Goals of the run's models that no figure is judged by."""
    judged = {(figure.model, figure.target) for figure in found}
    goals = [(model, goal) for model in models(run) for goal in targets(*family(model))]
    return [goal for goal in goals if goal not in judged]


def _figures(rows: Rows, card: Card) -> Iterator[tuple[str, Ratio]]:
    for test in (card.generation.name, card.prompt.name):
        for by, said in ((OURS, ""), (FAST, " fast")):
            if pair := rows.speed(test, by, PEER):
                yield f"{test}{said} ÷ {PEER}", _in_turns(*pair)
    deep, shallow = (rows.speed(t.name, OURS, PEER) for t in (card.deep, card.shallow))
    if deep and shallow:
        samples = [(a.samples, b.samples) for a, b in (deep, shallow)]
        name = f"{card.deep.name} ÷ d{card.shallow.depth}, ÷ the same of {PEER}"
        yield name, quotient(samples[0], samples[1], together=1)
    many, one = (f"{test.name} generation" for test in (card.many, card.one))
    for by, said in ((OURS, ""), (PEER, f", {PEER}")):
        if pair := rows.speed(many, by, by, one):
            times = _in_turns(*pair)
            more = card.many.parallel / card.one.parallel
            scaled = Ratio(more * times.value, more * times.low, more * times.high)
            yield f"{card.many.parallel} sequences ÷ 1{said}", scaled
    alone, together = (rows.get("scaling", card.prompt.name, threads=n) for n in (1, None))
    if alone and together and rows.threads > 1:
        name = f"{card.prompt.name} on {rows.threads} threads ÷ 1"
        yield name, _in_turns(alone, together)
    if card is FULL:  # what follows has no sizes of its own
        yield from _of_the_machine(rows)


def _in_turns(a: Measurement, b: Measurement) -> Ratio:
    return ratio(a.samples, b.samples, together=int(bool(a.rivals) and a.rivals == b.rivals))


def _of_the_machine(rows: Rows) -> Iterator[tuple[str, Ratio]]:
    step, alone = (rows.get("stream", STEP_STREAM, by) for by in (OURS, READING))
    if step and alone:
        yield "weights streamed ÷ reading them alone", _in_turns(alone, step)
    for m in rows.of("memory"):
        allowed = sum(sizes(m).values()) + ALLOWANCE
        name = f"peak memory ÷ (file + cache + {ALLOWANCE / 1e6:.0f} MB)"
        yield name, ratio(m.samples, [allowed])


def table(found: Sequence[Figure], missing: Sequence[tuple[str, Target]] = ()) -> Table:
    """Those with a goal first, each model's together; then goals without a figure."""
    judged: list[Row] = []
    others: list[Row] = []
    for figure in found:
        interval = f"[{figure.ratio.low:.2f}, {figure.ratio.high:.2f}]"
        value = Cell(f"{figure.ratio.value:.2f} {interval}", figure.ratio.value)
        begin = text(figure.model), text(figure.name), value
        if figure.target:
            verdict = _verdict(figure, figure.target.goal)
            judged.append((*begin, _goal(figure.target), verdict))
        else:
            others.append((*begin, text(""), text("")))
    for model, goal in missing:
        begin = text(model), text(goal.figure), text("")
        judged.append((*begin, _goal(goal), text("not measured")))
    rows = (*judged, *others)
    columns = ("Model", "Figure", "Measured", "Goal", "Verdict")
    return Table("card", "Figures against their goals", columns, rows, top=len(rows))


def _goal(goal: Target) -> Cell:
    return Cell(f"{'≤' if goal.most else '≥'} {goal.goal:g}", goal.goal)


def _verdict(figure: Figure, goal: float) -> Cell:
    open_ = figure.ratio.low <= goal <= figure.ratio.high
    words = "pass" if figure.met else "miss"
    if not figure.met:
        words += f" by {100 * abs(figure.ratio.value / goal - 1):.0f}%"
    remark = "the interval holds the goal" if open_ else ""
    return text(words + (", open" if open_ else ""), "good" if figure.met else "bad", remark)


def behind(run: Run) -> Table:
    """What the figures are made of: TOP/s and shares of a prompt, bytes, empty steps, gaps."""
    rows = [
        (text(model), text(what), text(value))
        for model, mine in models(run).items()
        for what, value in (*_rates(mine), *_prompt(run, model, mine.threads))
    ]
    columns = ("Model", "What", "Measured")
    caption = "What stands behind the figures"
    return Table("card-behind", caption, columns, tuple(rows), top=len(rows), words=True)


def _rates(rows: Rows) -> Iterator[tuple[str, str]]:
    for test, by in ((STEP_STREAM, OURS), (LINEAR_STREAM, OURS), (STEP_STREAM, READING)):
        if m := rows.get("stream", test, by):
            speeds = (digits(m.bytes / seconds / 1e9) for seconds in (m.median, m.limit_seconds))
            who = "by reading them alone, in turns" if by == READING else f"by a decode's {test}"
            yield f"Weights streamed {who}", "{} GB/s; at best {} ({})".format(*speeds, m.limit)
    for by in (OURS, PEER):
        pair = rows.speed(FULL.deep.name, by, by, FULL.shallow.name)
        if pair:
            kept = percent(pair[0].median / pair[1].median).text
            said = f"{kept} of its speed at depth {FULL.shallow.depth}"
            yield f"What {label(by)} keeps at depth {FULL.deep.depth:,}", said
    for m in rows.of("memory"):
        parts = ", ".join(f"{name} {digits(size / 1e6)}" for name, size in sizes(m).items())
        yield f"Peak memory ({m.test})", f"{digits(m.median / 1e6)} MB, of which {parts}"
    for m in rows.of("gap"):
        yield f"Fast numerics' logits after {m.test}", f"NMSE {digits(m.median)} from the default"
    empty = sorted(rows.of("empty step"), key=lambda m: m.threads)
    if empty:
        times = ", ".join(f"{duration(m.median)} on {plural(m.threads, 'thread')}" for m in empty)
        calls, stages = (sizes(empty[0])[name] for name in ("calls", "stages"))
        yield f"An empty step: {calls} calls in {stages} stages", times


def _prompt(run: Run, model: str, threads: int) -> Iterator[tuple[str, str]]:
    """The step of a prompt: how fast its products are, and where the rest of its time goes."""
    nodes = of_phase(run, "prompt").get((model, threads), [])
    if not nodes:
        return
    step = next((f"pp{m.tokens}" for m in nodes if m.test == WHOLE), "a prompt")
    seconds = dict.fromkeys(KINDS, 0.0)
    for m in nodes:
        if m.test in KINDS:
            seconds[m.test] += m.median
    linear = [m for m in nodes if m.test == "linear"]
    if linear:
        rate = sum(m.operations for m in linear) / seconds["linear"] / 1e12
        limits = [m.limit_seconds for m in linear]
        share = f", {percent(sum(limits) / seconds['linear']).text} of the limit"
        yield f"Linear nodes of {step}", f"{digits(rate)} TOP/s" + (share if all(limits) else "")
    total = whole(nodes)
    shares = {KINDS[kind]: taken / total for kind, taken in seconds.items()}
    shares["the rest"] = 1 - sum(shares.values())
    said = ", ".join(f"{name} {percent(share).text}" for name, share in shares.items())
    yield f"Where the time of {step} goes", said


def section(run: Run) -> Section:
    found = figures(run)
    missing = unmeasured(run, found)
    tables = [table(found, missing)] if found or missing else []
    more = behind(run)
    tables += [more] if more.rows else []
    return Section("card", "Goals", LEAD, tables=tuple(tables))
