"""The section on several machines: each against its own limits."""

from collections.abc import Sequence
from functools import partial

import pandas as pd

from bench.contenders.contender import OURS
from bench.race.results import Run
from bench.report.cells import NONE, Cell, count, percent, text
from bench.report.lookup import Measured, done, kind_of, mark, present, rows_of, unit_of
from bench.report.ops import limits_of
from bench.report.plots import bars
from bench.report.steps import WHOLE
from bench.report.table import Section, Table, table
from bench.report.words import digits, plural

Kind = tuple[str, str]  # what machines of one kind have in common: the CPU's name and key
KIND = ["device", "machine"]
SAME = ["bench", "test", "format", "shape", "model", "cache", "phase", "settings", "tokens"]
DRAWN = 8  # measurements
LEAD = (
    "What this run measured and machines of other kinds have measured as well: the last figure of"
    " each kind, by the kernel and on as many threads as were fastest. A share is that of the"
    " machine's own measured limit: it tells how well a machine is used, however fast it is."
)


def section(run: Run, runs: Sequence[Run]) -> Section:
    """Empty where all runs are of one kind of machine."""
    others = [r for r in runs if kind_of(r) != kind_of(run)]
    if not others:
        return Section("machines", "Machines", LEAD)
    every = [run, *reversed(others)]  # the last one first
    names = _names(every)
    rows = _shared(rows_of(every), run.run)
    rows = rows.assign(
        by=[names[kind] for kind in zip(*(rows[name] for name in KIND), strict=True)]
    )
    figures = table(
        "machines",
        "Speeds, and how much of its own limit each machine reaches",
        rows.itertuples(),
        {
            "Measurement": "what", "Machine": "by", "Threads": "threads",
            "Kernel": lambda m: text(m.variant), "Speed": _speed,
            "Of its limit": lambda m: percent(m.reached) if m.share else NONE, "Limit": "limit",
        },
        top=24,
    ).with_what_there_is()  # fmt: skip
    caption = "Share of each machine's own limit, median and quartiles; longer is better"
    plots = bars("plot-machines", caption, _marks(rows), "% of its limit")
    notes = () if len(rows) else ("They have no measurement in common with this run.",)
    return Section("machines", "Machines", LEAD, plots, (_machines(every, names), figures), notes)


def _names(runs: Sequence[Run]) -> dict[Kind, str]:
    """A CPU's name; where several kinds share it, with LLVM's name for them, or else with their
    keys."""
    kinds = pd.DataFrame(list(dict.fromkeys(map(kind_of, runs))), columns=KIND)
    brief = kinds["machine"].str.split("/").str.get(1).fillna("")
    keys = brief.mask(kinds.assign(machine=brief).duplicated(keep=False), kinds["machine"])
    alone = ~kinds["device"].duplicated(keep=False)
    shown = kinds["device"].where(alone, kinds["device"] + " (" + keys + ")")
    return dict(zip(kinds.itertuples(index=False, name=None), shown, strict=True))


def _shared(rows: pd.DataFrame, run: str) -> pd.DataFrame:
    """Measurements that this run and another kind share, each kind's last and fastest: models'
    steps, prompts and generation, then ops, the largest sizes first."""
    found = present(rows, contender=OURS)
    step = (found["bench"] == "node") & (found["test"] == WHOLE)
    plain = found["bench"].isin(["engine", "op"]) & (found["phase"] == "run")
    rated = (found["tokens"] > 0) | (found["bytes"] > 0)
    found = found[(step | plain) & rated]
    found = found.assign(place=found.groupby(SAME, sort=False).ngroup(), op=found["bench"] == "op")
    ours = found["place"][found["run"] == run]
    groups = found.groupby(["place", *KIND], sort=False)
    found = found[found["run"] == groups["run"].transform("first")]
    found = found.sort_values("median", kind="stable").drop_duplicates(["place", *KIND])
    several = found.groupby("place")["run"].transform("size") > 1
    found = found[several & found["place"].isin(ours)]
    what, size = [_what(m) for m in found.itertuples()], found["bytes"].where(found["op"], 0)
    found = found.assign(what=what, size=size, known=found["limit"] != "")
    order = {"op": True, "known": False, "size": False, "place": True} | dict.fromkeys(KIND, True)
    return found.sort_values([*order], ascending=[*order.values()], kind="stable")


def _what(m: Measured) -> str:
    if m.op:
        return " ".join(filter(None, (m.test, m.format, m.size, m.cache)))
    if m.test != WHOLE:
        return f"{m.model} {m.test}"
    return f"{m.model}, a step of {plural(m.tokens, 'token')}"


def _speed(m: Measured) -> Cell:
    value = done(m, unit_of(m)) / m.median
    return Cell(f"{digits(value)} {unit_of(m)}", value)


def _marks(rows: pd.DataFrame) -> list[dict[str, object]]:
    """Those that have a limit; of ops the largest sizes of some."""
    known = rows[rows["share"] > 0]
    several = known[known.groupby("place")["run"].transform("size") > 1]
    named = several["test"] + several["format"]
    first = several.groupby(named.where(several["op"], several["what"]))["what"].transform("first")
    drawn = several[several["what"] == first]
    chosen = drawn["what"].isin(drawn["what"].unique()[:DRAWN])
    return [
        {"part": m.what, "group": m.by, "name": OURS, **mark(m, 100 * m.limit_seconds)}
        for m in drawn[chosen].itertuples()
    ]


def _machines(runs: Sequence[Run], names: dict[Kind, str]) -> Table:
    """A row for each kind: its last limits."""
    probed = sorted(runs, key=lambda run: not run.limits)  # the last one first, as they are
    return table(
        "kinds",
        "Kinds of machines, and what each does at best",
        [next(run for run in probed if kind_of(run) == kind) for kind in names],
        {
            "Machine": lambda run: text(names[kind_of(run)], note=run.conditions.machine),
            "Measured": lambda run: text(run.when[:10]),
            "Cores": lambda run: count(run.conditions.cores),
            "Memory": partial(_best, "", "GB/s"),
            "float32": partial(_best, "f32", "GFLOP/s"),
            "int8": partial(_best, "int8", "GOP/s"),
        },
        top=0,
    )


def _best(arithmetic: str, unit: str, run: Run) -> Cell:
    """The peak of an arithmetic, or memory's, on the threads that reach most."""
    limits, problem = limits_of(run.limits)
    rates = [rate.per_second for rate in limits.peaks if rate.kind == arithmetic] if limits else []
    if limits and not arithmetic:
        counts = {rate.threads for rate in limits.bandwidths}
        rates = [limits.bandwidth(threads).per_second for threads in counts]
    if not rates:
        return Cell("—", note=problem, tone="quiet")
    return Cell(f"{digits(max(rates) / 1e9)} {unit}", max(rates))
