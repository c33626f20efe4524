"""The report on models within a budget, as Markdown with plots beside it."""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.figure import Figure

from bench.conditions import Conditions
from bench.offload.contest import Contest, curves, megabytes
from bench.offload.contests import IN_A_ROW, NAIVE, OVERLAPPED, SCATTERED
from bench.offload.race import Outcome
from bench.offload.way import DISK, LLAMA_CPP
from bench.ratio import Ratio
from bench.report.heading import heading, share, times
from bench.report.markdown import table_lines
from bench.report.table import NONE, Cell, Row, Table, number, percent, text

COLUMNS = (
    "Way", "ms a token", f"times {NAIVE}", f"times {OVERLAPPED}", f"times {LLAMA_CPP}",
    "MB a token", "GB/s reading", "ms reading", "ms waiting", "of the disk, reading",
    "of the disk, always", "neurons found",
)  # fmt: skip
LEAD = (
    "Steps of one token, all ways in turns, each in a process of its own; medians, and ratios with"
    f" their 95% bootstrap intervals. `{NAIVE}` reads the whole model past the page cache and then"
    f" computes; `{OVERLAPPED}` does both at once. GB/s are of the time in which anything is read,"
    " `of the disk` is beside reading the same file in a row, by the same readers, in turns."
    " Plots have medians and ranges."
)


def page(contests: Sequence[Contest], about: Conditions, plots: Sequence[str]) -> str:
    """All of them; `plots` are the names of the curves' files, in their order."""
    lines = [*heading("Models within a memory budget", about), "", LEAD]
    names = iter(plots)
    for contest in contests:
        lines += ["", f"## {title(contest)}", "", disks(contest), "", *table_lines(table(contest))]
        if contest.kind.startswith("curve"):
            lines += ["", f"![{contest.kind}]({next(names)})"]
        lines += ["", *(f"- {line}" for line in remarks(contest))] if remarks(contest) else []
    return "\n".join(lines) + "\n"


def title(contest: Contest) -> str:
    subject = contest.subject
    kind = "of weights alone" if subject.alone else "of the process"
    return (
        f"{subject.path.stem}: {contest.kind} ({megabytes(subject.weights)} of weights,"
        f" budgets {kind}, {subject.threads} threads)"
    )


def disks(contest: Contest) -> str:
    """A line on what the disk gives."""
    told = []
    for name, how in ((IN_A_ROW, "in a row"), (SCATTERED, "from anywhere")):
        if found := contest.find(name):
            size = f"{found.way.process.scattered} bytes at a time " if name == SCATTERED else ""
            rates = [1e-9 * s.bytes / s.seconds for s in found.samples]
            spread = f"[{min(rates):.2f}, {max(rates):.2f}]"
            told.append(f"{size}{how} at {median(rates):.2f} GB/s {spread}")
    return f"The disk reads {', and '.join(told)}." if told else "The disk was not looked at."


def remarks(contest: Contest) -> list[str]:
    """What is in memory, who is absent and why."""
    lines = list(contest.notes)
    for o in contest.models:
        if o.absent:
            lines.append(f"{o.way.name} is absent: {o.absent}")
        elif o.about.resident or o.about.streamed:
            said = (
                f"{o.way.name}: a budget of {megabytes(o.way.process.budget)},"
                f" {megabytes(o.about.resident)} of weights in memory,"
                f" {megabytes(o.about.streamed)} read for each step"
            )
            if o.about.pool:
                said += f", {megabytes(o.about.pool)} for neurons, {o.about.kept:.0%} of them stay"
            lines.append(said)
    return lines


def table(contest: Contest) -> Table:
    """A row for each way; columns that nobody has are left out."""
    rows = [_row(contest, o) for o in contest.models]
    used = [i for i in range(len(COLUMNS)) if any(row[i] is not NONE for row in rows)]
    return Table(
        contest.kind,
        contest.kind,
        tuple(COLUMNS[i] for i in used),
        tuple(tuple(row[i] for i in used) for row in rows),
        top=len(rows),
    )


def _row(contest: Contest, o: Outcome) -> Row:
    def middle(name: str, unit: float) -> Cell:
        return number(o.median(name) / unit)

    return (
        text(o.way.name),
        middle("seconds", 1e-3),
        *(times(contest.faster(o, than)) for than in (NAIVE, OVERLAPPED, LLAMA_CPP)),
        middle("bytes", 1e6),
        number(o.rate / 1e9),
        middle("busy", 1e-3),
        middle("waited", 1e-3),
        share(contest.of_disk(o, busy=True)),
        share(contest.of_disk(o, busy=False)),
        percent(o.hit_rate),
    )


def drawing(contest: Contest) -> Figure:
    """Tokens a second by budget, beside what the bytes and the disk allow."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    found = curves(contest)
    shares = [100 * share for share, _ in found]
    speeds = [[1 / s for s in o.seconds] for _, o in found]
    middle = [1 / o.median("seconds") for _, o in found]
    reach = [(m - min(s), max(s) - m) for m, s in zip(middle, map(sorted, speeds), strict=True)]
    axes.errorbar(
        shares, middle, yerr=tuple(zip(*reach, strict=True)), marker="o", label="measured"
    )
    for name, how in ((IN_A_ROW, "in a row"), (SCATTERED, "a neuron at a time")):
        if contest.find(name):
            allowed = [1 / contest.bound(o, name) for _, o in found]
            axes.plot(shares, allowed, "--", label=f"what the bytes allow, read {how}")
    axes.set(
        xlabel="budget, % of the weights' bytes",
        ylabel="tokens a second",
        title=f"{contest.subject.path.stem}: {contest.kind}",
        ylim=(0, None),
    )
    axes.legend()
    return figure


def as_dict(contest: Contest) -> dict[str, Any]:
    """For programs; seconds and bytes."""

    def told(found: Ratio | None) -> list[float] | None:
        return [found.value, found.low, found.high] if found else None

    def way(o: Outcome) -> dict[str, Any]:
        process = o.way.process
        names = ("seconds", "bytes", "busy", "waited", "hits", "misses")
        found: dict[str, Any] = {
            "way": o.way.name,
            "by": process.who,
            "budget": process.budget,
            "limited": process.limited,
            "resident": o.about.resident,
            "streamed": o.about.streamed,
            "pool": o.about.pool,
            "kept": o.about.kept,
            "absent": o.absent,
            "samples": o.seconds,
        }
        found |= {name: _finite(o.median(name)) for name in names}
        if process.who != DISK:
            found |= {
                f"times_{n}": told(contest.faster(o, n)) for n in (NAIVE, OVERLAPPED, LLAMA_CPP)
            }
            found["of_disk_reading"] = told(contest.of_disk(o, busy=True))
            found["of_disk_always"] = told(contest.of_disk(o, busy=False))
        return found

    return {
        "kind": contest.kind,
        "model": contest.subject.path.name,
        "weights": contest.subject.weights,
        "weights_alone": contest.subject.alone,
        "threads": contest.subject.threads,
        "notes": list(contest.notes),
        "ways": [way(o) for o in contest.outcomes],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def write(contests: Sequence[Contest], about: Conditions, out: Path) -> None:
    """The page, and beside it a plot for each curve."""
    plots = []
    for contest in contests:
        if contest.kind.startswith("curve"):
            words = [out.stem, contest.subject.path.stem, *contest.kind.split()[1:]]
            name = "-".join(words).replace(".", "-") + ".svg"
            drawing(contest).savefig(out.parent / name)
            plots.append(name)
    out.write_text(page(contests, about, plots))
