"""Laws against planted bugs: a law that no bug breaks cannot fail."""

import tempfile
from pathlib import Path

from conformance.bugs import general
from conformance.bugs.bug import Bug
from conformance.bugs.shares import COMPILER
from conformance.bugs.table import PLANTED
from conformance.bugs.trial import SECRET
from kernels.trial import held, law_cases
from reference.op import Law, Op

COMMON = "-alone", "-contained"  # suffixes of laws that many ops share


def breaker(op: Op, law: Law) -> Bug | None:
    """The first planted bug that breaks a law of an op, in a kernel or in the formula."""
    return next((bug for bug in candidates(op, law) if breaks(bug, law)), None)


def candidates(op: Op, law: Law) -> list[Bug]:
    """The op's bugs in the formats of the law that affect only their outputs. For common laws the
    general bugs come first, since they break them soonest."""
    languages = ("python", "c") if COMPILER else ("python",)
    found = [
        bug
        for bug in PLANTED
        if bug.op == op.name
        and bug.language in languages
        and bug.seen != "construction"
        and bug.activations == "float32"
        and bug.format in (law.formats or (bug.format,))
    ]
    soonest = general.BUGS if law.name.endswith(COMMON) else ()
    return sorted(
        found, key=lambda bug: (bug not in soonest, languages.index(bug.language), bug.format or "")
    )


def breaks(bug: Bug, law: Law) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        kernel = bug.kernel(Path(folder))
        return any(not held(kernel, law, case).passed for case in law_cases(kernel, SECRET))
