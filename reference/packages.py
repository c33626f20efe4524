"""Ops and kernels of other packages, found by entry points (kernels: kernels/packages.py).

A package is imported only when something that is not ours is requested. A package that fails has a
complaint, one line that names it; others are not affected.
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
NAME = re.compile(r"[\w.-]+")  # the package name at the start of a requirement


@dataclass(frozen=True, slots=True)
class Package:
    """A distribution with an entry point: its name and version, its import name, and the versions
    of its requirements."""

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
                continue  # belongs to an extra


@dataclass(frozen=True, slots=True)
class PackageRow:
    """One row of a package, from the entry point of this name."""

    package: Package
    entry: str
    row: Any


@dataclass(frozen=True, slots=True)
class Loaded:
    """The rows of all packages in a group, and a complaint for each that failed."""

    rows: tuple[PackageRow, ...]
    complaints: tuple[str, ...]


STAMPS: dict[str, int] = {}  # ctime of each file of the packages before import, by path
PACKAGES: dict[str, Package] = {}  # by import name


@cache
def load(group: str) -> Loaded:
    """Import the group's entry points: each is a row, or a list or tuple of rows."""
    rows, complaints = list[PackageRow](), list[str]()
    for entry in sorted(entry_points(group=group), key=lambda entry: entry.name):
        package = Package.of(entry)
        _stamp(package)
        try:
            value = entry.load()
        except (Exception, SystemExit) as error:  # third-party code
            why = " ".join(f"{type(error).__name__}: {error}".split())
            complaints.append(f"package {package}: {entry.value} cannot be imported: {why}")
            continue
        found = value if isinstance(value, list | tuple) else (value,)
        rows += [PackageRow(package, entry.name, row) for row in found]
    return Loaded(tuple(rows), tuple(complaints))


def _stamp(package: Package) -> None:
    """Record the package's files before it is imported."""
    if package.module not in PACKAGES:
        PACKAGES[package.module] = package
        STAMPS.update({str(p): p.stat().st_ctime_ns for p in files_of(package.module)})


def files_of(module: str) -> list[Path]:
    """The files of a package: all in its folder but bytecode, or its single module."""
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


def find_ops(ours: Mapping[str, Op]) -> tuple[dict[str, Op], dict[str, Package], list[str]]:
    """The ops of packages by name, and the package of each; and complaints, for example about names
    already taken."""
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
