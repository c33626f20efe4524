"""The section on how the judge was judged: wrong kernels, planted, and what stopped them."""

from collections.abc import Sequence

from bench.report.table import NONE, Cell, Section, count, number, plural, table, text
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
    made = table(
        "planted-bugs",
        f"{stopped:,} of {plural(len(bugs), 'planted bug')} were stopped",
        together.values(),
        {
            "Op": lambda bugs: text(bugs[0].op),
            "Bug": lambda bugs: text(bugs[0].bug),
            "Language": lambda bugs: text(bugs[0].language),
            "Formats": _formats,
            "Stopped by": _outcome,
            "Seconds": lambda bugs: number(max(bug.seconds for bug in bugs)),
        },
    )
    return Section("planted", TITLE, LEAD, tables=(made,))


def _formats(bugs: Sequence[Planted]) -> Cell:
    formats = sum(bool(bug.format) for bug in bugs)
    return count(formats) if formats else NONE


def _outcome(bugs: Sequence[Planted]) -> Cell:
    survived = [bug.format for bug in bugs if not bug.stage]
    stages = ", ".join(dict.fromkeys(bug.stage for bug in bugs if bug.stage))
    words = " ".join(["survived", *filter(None, survived)]) if survived else stages
    return text(words, "bad" if survived else "", bugs[0].failure)
