"""The section on conformance: which kernels have proved themselves on this machine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.report.table import NONE, Cell, Row, Section, Table, digits, plural, text
from engine.shell.ops import NOT_HERE
from kernels.call import AnyKernel
from kernels.certificates import Certificate, Key, Store
from kernels.cuda.device import EMULATED
from kernels.cuda.fusions import EVERY_CUDA
from kernels.cuda.kernel import CudaKernel
from kernels.kernel import Kernel
from kernels.provenance import machine
from kernels.table import EVERY, KERNELS, find, of_packages


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of a kernel here: what the machine lacks for it, and its certificate if any,
    of a CUDA kernel the GPU's or else the emulator's."""

    missing: tuple[str, ...] = ()
    certificate: Certificate | None = None

    @property
    def certified(self) -> bool:
        """It may run here."""
        passed = self.certificate is not None and self.certificate.passed
        return passed and not self.missing and not self.emulated

    @property
    def emulated(self) -> bool:
        """All that is known is from the emulator."""
        return self.certificate is not None and self.certificate.level == EMULATED


Standings = Mapping[str, Standing]  # by the kernel's name


def standings() -> dict[str, Standing]:
    """Of every kernel, here and now."""
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
    """Op and format by variant. `measured_on` is the machine of the run that is reported."""
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
    return Section(
        "conformance",
        "Conformance",
        lead,
        tables=tuple(table for table in tables if table.rows),
        notes=tuple(notes),
    )


def _installed(known: Standings) -> list[Kernel]:
    """The kernels of packages whose standing is known."""
    ours = {kernel.name for kernel in EVERY}
    return [find(name) for name in known if name not in ours]


def _matrix(anchor: str, caption: str, kernels: Sequence[AnyKernel], known: Standings) -> Table:
    rows: dict[tuple[str, str], dict[str, Cell]] = {}
    variants = dict.fromkeys(kernel.variant for kernel in kernels)
    for kernel in kernels:
        cells = rows.setdefault((kernel.op, kernel.format or ""), {})
        cells[kernel.variant] = _cell(kernel, known[kernel.name])
    table: list[Row] = [
        (text(op), text(stored), *(cells.get(variant, NONE) for variant in variants))
        for (op, stored), cells in rows.items()
    ]
    columns = ("Op", "Format", *variants)
    return Table(anchor, caption, columns, tuple(table), len(table), words=True)


def _cell(kernel: AnyKernel, standing: Standing) -> Cell:
    found = standing.certificate
    if found is None:
        if standing.missing:
            needed = f"needs {', '.join(standing.missing)}"
            return text(NOT_HERE[kernel.target], "quiet", needed)
        return text("untried", "quiet")
    cases = plural(found.cases, "case")
    if not found.passed:
        return Cell("failed", None, found.failure, "bad")
    note = f"{cases}, NMSE {found.nmse:.1e}, {found.when[:10]}"
    tone = "good" if standing.certified else "quiet"
    return Cell(f"{found.level} {digits(found.worst, 2)}", found.worst, note, tone)
