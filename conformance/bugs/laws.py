"""Laws by planted bugs: a law that no bug breaks cannot fail, and is none."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.bugs.bug import Bug
from conformance.bugs.shares import COMPILER
from conformance.bugs.table import PLANTED
from conformance.bugs.trial import SECRET
from kernels.trial import held, law_cases
from reference.op import Law, Op
from reference.table import OPS


@dataclass(frozen=True, slots=True)
class Broken:
    """A law of an op, and the planted bugs that break it, as far as they were tried."""

    op: str
    law: str
    bugs: tuple[Bug, ...]


def broken(op: Op, law: Law, most: int = 1) -> Broken:
    """The first bugs that break it, no more than so many: of right code but for the bug, or of the
    formula itself."""
    found: list[Bug] = []
    for bug in candidates(op, law):
        if len(found) < most and breaks(bug, law):
            found.append(bug)
    return Broken(op.name, law.name, tuple(found))


def candidates(op: Op, law: Law) -> list[Bug]:
    """The op's bugs, in the formats that the law is about, which harm nobody but their outputs."""
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
    return sorted(found, key=lambda bug: (languages.index(bug.language), bug.format or ""))


def breaks(bug: Bug, law: Law) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        kernel = bug.kernel(Path(folder))
        return any(not held(kernel, law, case).passed for case in law_cases(kernel, SECRET))


def matrix(words: Sequence[str] = (), most: int = 1) -> Iterator[Broken]:
    """Yield a row for every law of the ops whose names hold one of these words, or of all."""
    for op in OPS.values():
        for law in op.laws if any(word in op.name for word in words or ("",)) else ():
            yield broken(op, law, most)
