"""The section on conformance: which kernels have proved themselves on this machine."""

from collections.abc import Mapping
from dataclasses import dataclass

from bench.report.table import NONE, Cell, Row, Section, Table, digits, plural, text
from kernels.certificates import Certificate, Key, Store
from kernels.kernel import Kernel
from kernels.provenance import machine
from kernels.table import KERNELS


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of a kernel here: what the CPU lacks for it, or its certificate if any."""

    missing: tuple[str, ...] = ()
    certificate: Certificate | None = None

    @property
    def certified(self) -> bool:
        return not self.missing and self.certificate is not None and self.certificate.passed


Standings = Mapping[str, Standing]  # by the kernel's name


def standings() -> dict[str, Standing]:
    """Of every kernel, here and now."""
    known = Store().load()
    return {
        kernel.name: Standing(tuple(kernel.missing()), known.get(Key.of(kernel).digest))
        for kernel in KERNELS
    }


def passed(known: Standings) -> tuple[int, int]:
    """How many are certified, of how many that this CPU can run."""
    able = [standing for standing in known.values() if not standing.missing]
    return sum(standing.certified for standing in able), len(able)


def section(known: Standings, measured_on: str) -> Section:
    """Op and format by variant. `measured_on` is the machine of the run that is reported."""
    rows: dict[tuple[str, str], dict[str, Cell]] = {}
    variants = dict.fromkeys(kernel.variant for kernel in KERNELS)
    for kernel in KERNELS:
        cells = rows.setdefault((kernel.op, kernel.format or ""), {})
        cells[kernel.variant] = _cell(kernel, known[kernel.name])
    table: list[Row] = [
        (text(op), text(stored), *(cells.get(variant, NONE) for variant in variants))
        for (op, stored), cells in rows.items()
    ]
    good, able = passed(known)
    notes = [
        f"{name}: {standing.certificate.failure}"
        for name, standing in known.items()
        if standing.certificate and not standing.certificate.passed
    ]
    if measured_on != machine():
        notes.insert(0, "These certificates are not of the machine that the run measured.")
    lead = (
        f"{good} of {plural(able, 'kernel')} that this CPU can run hold a certificate that is"
        " valid now, at the level given: quick is the op's seeded cases, deep is Hypothesis. The"
        " figure is the worst error seen, as a share of the bound derived for it: above 1 is wrong."
    )
    columns = ("Op", "Format", *variants)
    caption = "Certificates, with the worst error over its bound"
    matrix = Table("matrix", caption, columns, tuple(table), len(table), words=True)
    return Section("conformance", "Conformance", lead, tables=(matrix,), notes=tuple(notes))


def _cell(kernel: Kernel, standing: Standing) -> Cell:
    if standing.missing:
        return text("not on this CPU", "quiet", f"needs {', '.join(standing.missing)}")
    found = standing.certificate
    if found is None:
        return text("untried", "quiet")
    cases = plural(found.cases, "case")
    if not found.passed:
        return Cell("failed", None, found.failure, "bad")
    note = f"{cases}, NMSE {found.nmse:.1e}, {found.when[:10]}"
    return Cell(f"{found.level} {digits(found.worst, 2)}", found.worst, note, "good")
