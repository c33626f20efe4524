"""What other packages bring by entry points: ops of their own, and kernels (kernels/packages.py).

Nothing of them is imported before something is asked for that is not ours. A package that cannot be
used has a complaint, one line that names it, and the others are not the worse for it.
"""

import importlib.util
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Any

from reference.op import Op

OPS_GROUP = "assay.ops"
NAME = re.compile(r"[\w.-]+")  # with which a requirement begins


@dataclass(frozen=True, slots=True)
class Package:
    """A distribution that brings something: its name and version, what its code is imported as,
    and the versions of what it requires."""

    name: str
    version: str
    module: str
    requires: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    @classmethod
    def of(cls, entry: EntryPoint) -> "Package":
        found, module = entry.dist, entry.module.partition(".")[0]
        if found is None:
            return cls(module, "", module, ())
        return cls(found.name, found.version, module, tuple(_requires(found)))


def _requires(found: Distribution) -> Iterable[str]:
    for requirement in found.requires or ():
        name = NAME.match(requirement)
        if name:
            try:
                yield f"{name[0]} {version(name[0])}"
            except PackageNotFoundError:
                continue  # of an extra that is not asked for


@dataclass(frozen=True, slots=True)
class Brought:
    """One row that a package brings, by the entry point of this name."""

    package: Package
    entry: str
    row: Any


@dataclass(frozen=True, slots=True)
class Loaded:
    """What all packages bring to a group, and a line for each that could not be used."""

    rows: tuple[Brought, ...]
    complaints: tuple[str, ...]


STAMPS: dict[str, int] = {}  # of each file of the packages, by its path: as before their import
PACKAGES: dict[str, Package] = {}  # by what they are imported as


@cache
def load(group: str) -> Loaded:
    """Import what the group's entry points name: each a row, or several in a list or tuple."""
    rows, complaints = list[Brought](), list[str]()
    for entry in sorted(entry_points(group=group), key=lambda entry: entry.name):
        package = Package.of(entry)
        _stamp(package)
        try:
            value = entry.load()
        except (Exception, SystemExit) as error:  # whatever its authors did
            why = " ".join(f"{type(error).__name__}: {error}".split())
            complaints.append(f"package {package}: {entry.value} cannot be imported: {why}")
            continue
        found = value if isinstance(value, list | tuple) else (value,)
        rows += [Brought(package, entry.name, row) for row in found]
    return Loaded(tuple(rows), tuple(complaints))


def _stamp(package: Package) -> None:
    """Note its files before anything of them is imported."""
    if package.module not in PACKAGES:
        PACKAGES[package.module] = package
        STAMPS.update({str(p): p.stat().st_ctime_ns for p in files_of(package.module)})


def files_of(module: str) -> list[Path]:
    """The files of a package: all in its folder but bytecode, or its only one."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return []
    if spec is None:
        return []
    if spec.submodule_search_locations is None:
        return [Path(spec.origin)] if spec.origin else []
    found = (p for folder in spec.submodule_search_locations for p in Path(folder).rglob("*"))
    return sorted(p for p in found if p.is_file() and "__pycache__" not in p.parts)


def ops_beside(ours: Mapping[str, Op]) -> tuple[dict[str, Op], dict[str, Package], list[str]]:
    """By name the ops of packages, and who brings each; and complaints, of those among others whose
    name is taken."""
    loaded, ops, packages = load(OPS_GROUP), dict[str, Op](), dict[str, Package]()
    complaints = list(loaded.complaints)
    for brought in loaded.rows:
        op, package = brought.row, brought.package
        if not isinstance(op, Op):
            complaints.append(
                f"package {package}: entry point {brought.entry} of {OPS_GROUP} gives"
                f" {type(op).__name__}, want an Op of reference.op"
            )
        elif op.name in ours or op.name in ops:
            owner = packages.get(op.name, "Assay")
            complaints.append(f"package {package}: the op {op.name} is taken: {owner} has it")
        else:
            ops[op.name], packages[op.name] = op, package
    return ops, packages, complaints
