"""The section on how the judge was judged: wrong kernels, planted, and what stopped them."""

from collections.abc import Sequence

from bench.report.table import Row, Section, Table, count, number, plural, text
from kernels.planted import Planted

TITLE = "The judge, judged"
LEAD = (
    "Wrong kernels planted among right ones, and what stopped each of what an engine demands before"
    " a kernel serves: a look at its machine code (construction), the op's cases, or a case at the"
    " size of a model's node. Seconds are those from source to verdict, compiling included."
)
HOW = "None were planted for this judge: python -m conformance.bugs does."


def section(bugs: Sequence[Planted]) -> Section:
    """A row for each bug; the same one in several formats is one."""
    if not bugs:
        return Section("planted", TITLE, LEAD, notes=(HOW,))
    together: dict[tuple[str, str, str], list[Planted]] = {}
    for bug in bugs:
        together.setdefault((bug.op, bug.bug, bug.language), []).append(bug)
    stopped = sum(bool(bug.stage) for bug in bugs)
    caption = f"{stopped:,} of {plural(len(bugs), 'planted bug')} were stopped"
    columns = ("Op", "Bug", "Language", "Formats", "Stopped by", "Seconds")
    rows = tuple(map(_row, together.values()))
    return Section("planted", TITLE, LEAD, tables=(Table("planted-bugs", caption, columns, rows),))


def _row(bugs: Sequence[Planted]) -> Row:
    first, formats = bugs[0], sum(bool(bug.format) for bug in bugs)
    survived = [bug.format for bug in bugs if not bug.stage]
    stages = ", ".join(dict.fromkeys(bug.stage for bug in bugs if bug.stage))
    outcome = " ".join(["survived", *filter(None, survived)]) if survived else stages
    return (
        text(first.op),
        text(first.bug),
        text(first.language),
        count(formats) if formats else text(""),
        text(outcome, "bad" if survived else "", first.failure),
        number(max(bug.seconds for bug in bugs)),
    )
