"""Kernels of other packages, from their entry points `assay.kernels`, by variant.

The entry point's name is the variant's: `[project.entry-points."assay.kernels"]` with the line
`example = "assay_example.norms:KERNELS"` adds kernels of the variant "example". They are certified
as ours are, and serve where that variant is requested, nowhere else.
"""

from collections.abc import Collection

from kernels.kernel import Kernel
from reference.packages import Package, PackageRow, load
from reference.table import OPS

KERNELS_GROUP = "assay.kernels"

Rows = dict[str, tuple[Kernel, Package]]  # by the kernel's name


def kernels_beside(variants: Collection[str]) -> tuple[Rows, list[str]]:
    """The kernels of installed packages, none of which shares a variant with ours, and a complaint
    for each unusable one."""
    loaded, rows = load(KERNELS_GROUP), Rows()
    complaints = list(loaded.complaints)
    for brought in loaded.rows:
        kernel = brought.row
        if why := _complaint(brought, variants):
            complaints.append(f"package {brought.package}: {why}")
        elif kernel.name in rows:
            other = rows[kernel.name][1]
            complaints.append(f"package {brought.package}: {kernel.name} is taken by {other}")
        else:
            rows[kernel.name] = kernel, brought.package
    return rows, complaints


def _complaint(brought: PackageRow, variants: Collection[str]) -> str:
    """Why a row is no usable kernel here; "" if it is one."""
    kernel, entry = brought.row, brought.entry
    if not isinstance(kernel, Kernel):
        found = type(kernel).__name__
        return f"entry point {entry} of {KERNELS_GROUP} gives {found}, want kernels.kernel.Kernel"
    if entry in variants:
        return f"the variant {entry} is Assay's own: name the entry point otherwise"
    if kernel.variant != entry:
        return f"{kernel.name} is no {entry}: a kernel's variant is its entry point's name"
    if kernel.target != "cpu":
        return f"{kernel.name} is for {kernel.target}: packages bring kernels for the CPU"
    try:
        op = OPS[kernel.op]
    except KeyError:
        return f"{kernel.name}: there is no op {kernel.op!r}"
    if kernel.format not in (op.formats or (None,)):
        return f"{kernel.name}: {op.name} has no format {kernel.format}"
    return ""
