"""Sections on conformance: certified kernels on this machine, planted bugs that the judge stopped,
and tuned knobs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd

from bench.report.cells import NONE, Cell, count, number, text
from bench.report.table import Section, Table, table
from bench.report.words import digits, plural
from engine.shell.ops import NOT_HERE
from kernels.call import AnyKernel
from kernels.certificates import Certificate, Key, Store
from kernels.cuda.fusion.fusions import EVERY_CUDA
from kernels.cuda.runtime.device import EMULATED
from kernels.cuda.runtime.kernel import CudaKernel
from kernels.kernel import Kernel
from kernels.planted import Planted
from kernels.provenance import machine
from kernels.table import EVERY, KERNELS, find, of_packages
from kernels.tuning import Tuned, changes

PLANTED = "The judge, judged"
PLANTED_LEAD = (
    "Wrong kernels planted among right ones, and what stopped each of what an engine demands before"
    " a kernel serves: a look at its machine code (construction), the op's cases, or a case at the"
    " size of a model's node. Seconds are those from source to verdict, compiling included."
)
NONE_PLANTED = "None were planted for this judge: python -m conformance.bugs does."
TUNING = "Tuning"
TUNING_LEAD = (
    "Knobs change no bit of what a kernel gives: how far ahead weights are asked for, and into"
    " which cache. They were measured on a model's own weights, cold, by all threads, in turns."
    " The gain is the time of a step of one token with the values that kernels begin with, over"
    " that with those chosen; beside it the least and the most that any turn gave."
)
NONE_TUNED = (
    "Nothing was measured on this machine: assay tune MODEL, or the first load of a large one."
)


@dataclass(frozen=True, slots=True)
class Standing:
    """A kernel's state here: what the machine lacks for it, and its certificate if any; for a CUDA
    kernel the GPU's or else the emulator's."""

    missing: tuple[str, ...] = ()
    certificate: Certificate | None = None

    @property
    def certified(self) -> bool:
        """It may run here."""
        passed = self.certificate is not None and self.certificate.passed
        return passed and not self.missing and not self.emulated

    @property
    def emulated(self) -> bool:
        """Only tried on the emulator."""
        return self.certificate is not None and self.certificate.level == EMULATED


Standings = Mapping[str, Standing]  # by the kernel's name


def standings() -> dict[str, Standing]:
    """The state of every kernel, here and now."""
    known = Store().load()
    return {kernel.name: _standing(kernel, known) for kernel in (*EVERY, *of_packages())}


def _standing(kernel: AnyKernel, known: Mapping[str, Certificate]) -> Standing:
    missing = tuple(kernel.missing())
    found = None if missing else known.get(Key.of(kernel).digest)
    if found is None and isinstance(kernel, CudaKernel):
        found = known.get(Key.of(kernel, EMULATED).digest)
    return Standing(missing, found)


def passed(known: Standings) -> tuple[int, int]:
    """How many are certified, of how many that this machine can run."""
    able = [standing for standing in known.values() if not standing.missing]
    return sum(standing.certified for standing in able), len(able)


def on_emulator(known: Standings) -> int:
    """How many have passed there and nowhere else."""
    alone = [standing.certificate for standing in known.values() if standing.emulated]
    return sum(found is not None and found.passed for found in alone)


def section(known: Standings, measured_on: str) -> Section:
    """Op and format by variant. `measured_on` is the machine of the reported run."""
    good, able = passed(known)
    notes = [
        f"{name}: {standing.certificate.failure}"
        for name, standing in known.items()
        if standing.certificate and not standing.certificate.passed
    ]
    if measured_on != machine():
        notes.insert(0, "These certificates are not of the machine that the run measured.")
    lead = (
        f"{good} of {plural(able, 'kernel')} that this machine can run hold a certificate that is"
        " valid now, at the level given: quick is the op's seeded cases, deep is Hypothesis. The"
        " figure is the worst error seen, as a share of the bound derived for it: above 1 is wrong."
        " Emulated means that a CUDA kernel was tried on a CPU in a GPU's place, which is never"
        " enough to run on a GPU."
    )
    tables = [
        _matrix("matrix", "Certificates, with the worst error over its bound", KERNELS, known),
        _matrix("matrix-cuda", "Those of CUDA kernels", EVERY_CUDA, known),
        _matrix("matrix-packages", "Those of installed packages", _installed(known), known),
    ]
    return Section("conformance", "Conformance", lead, tables=tables, notes=notes)


def _installed(known: Standings) -> list[Kernel]:
    """Kernels of packages with a known state."""
    ours = {kernel.name for kernel in EVERY}
    return [find(name) for name in known if name not in ours]


def _matrix(anchor: str, caption: str, kernels: Sequence[AnyKernel], known: Standings) -> Table:
    """A row for each op and format, a column for each variant."""
    variants = dict.fromkeys(kernel.variant for kernel in kernels)
    rows: dict[tuple[str, str], dict[str, Cell]] = {}
    for kernel in kernels:
        op, stored = kernel.op, kernel.format or ""
        cells = rows.setdefault((op, stored), {"Op": text(op), "Format": text(stored)})
        cells[kernel.variant] = _cell(kernel, known[kernel.name])
    found = [{**dict.fromkeys(variants, NONE), **cells} for cells in rows.values()]
    frame = pd.DataFrame(found, columns=["Op", "Format", *variants])
    return Table(anchor, caption, frame, top=0, words=True)


def _cell(kernel: AnyKernel, standing: Standing) -> Cell:
    found = standing.certificate
    if found is None:
        if standing.missing:
            needed = f"needs {', '.join(standing.missing)}"
            return text(NOT_HERE[kernel.target], "quiet", needed)
        return text("untried", "quiet")
    if not found.passed:
        return Cell("failed", None, found.failure, "bad")
    note = f"{plural(found.cases, 'case')}, NMSE {found.nmse:.1e}, {found.when[:10]}"
    tone = "good" if standing.certified else "quiet"
    return Cell(f"{found.level} {digits(found.worst, 2)}", found.worst, note, tone)


def planted_section(bugs: Sequence[Planted]) -> Section:
    """The test of the judge: a row for each planted bug; the same bug in several formats is one
    row."""
    if not bugs:
        return Section("planted", PLANTED, PLANTED_LEAD, notes=(NONE_PLANTED,))
    together = pd.DataFrame([asdict(bug) for bug in bugs]).groupby(
        ["op", "bug", "language"], sort=False
    )
    stopped = sum(bool(bug.stage) for bug in bugs)
    made = table(
        "planted-bugs",
        f"{stopped:,} of {plural(len(bugs), 'planted bug')} were stopped",
        [part for _, part in together],
        {
            "Op": lambda part: text(part["op"].iloc[0]),
            "Bug": lambda part: text(part["bug"].iloc[0]),
            "Language": lambda part: text(part["language"].iloc[0]),
            "Formats": lambda part: count(n) if (n := int((part["format"] != "").sum())) else NONE,
            "Stopped by": _outcome,
            "Seconds": lambda part: number(part["seconds"].max()),
        },
    )
    return Section("planted", PLANTED, PLANTED_LEAD, tables=(made,))


def _outcome(bugs: pd.DataFrame) -> Cell:
    survived = bugs["format"][bugs["stage"] == ""]
    if len(survived):
        return text(" ".join(["survived", *survived]).strip(), "bad", bugs["failure"].iloc[0])
    return text(", ".join(bugs["stage"].unique()), note=bugs["failure"].iloc[0])


def tuned_section(tunings: Sequence[Tuned]) -> Section:
    """Knobs tuned on this machine, and their gain: a row for each kernel and node's sizes, the
    largest gain first."""
    if not tunings:
        return Section("tuning", TUNING, TUNING_LEAD, notes=(NONE_TUNED,))
    middle = float(np.median([one.gain for one in tunings]))
    made = table(
        "tunings",
        f"{plural(len(tunings), 'kernel')} at a node's sizes; the middle gain {digits(middle)}",
        sorted(tunings, key=lambda one: -one.gain),
        {
            "Kernel": "kernel", "Sizes": "shape", "Threads": "threads",
            "Chosen (before)": lambda one: text(changes(one)),
            "Gain": lambda one: number(one.gain, "{:.3f} to {:.3f}".format(*one.spread)),
            "Measured": lambda one: text(one.when[:10]),
        },
    )  # fmt: skip
    return Section("tuning", TUNING, TUNING_LEAD, tables=(made,))
