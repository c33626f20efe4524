"""A worker's description of itself, and reasons to refuse one."""

import hashlib
import socket
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bench.packages import versions

ROOT = Path(__file__).parents[2]
ROOMS = ("reference", "kernels", "engine", "bench")
SOURCES = (".py", ".cu", ".cuh", ".json", ".toml")
PACKAGES = ("assay", "numpy", "numba", "llvmlite", "dask", "distributed")


@dataclass(frozen=True, slots=True)
class About:
    """A process of Assay: `versions` of everything results may depend on, sources included;
    `machine` is kernels.provenance's key, `device` the CPU's name, `cache` the folder of its
    certificates."""

    versions: dict[str, str]
    machine: str
    device: str
    host: str
    cache: str

    def differs(self, other: "About") -> str:
        """In words, which of the other's versions differ; "" if they are the same."""
        told = [
            f"{name} {other.versions.get(name, 'missing')} instead of {wanted}"
            for name, wanted in self.versions.items()
            if other.versions.get(name) != wanted
        ]
        return ", ".join(told)


def about() -> About:
    """The description of this process."""
    from bench.machine.conditions import cpu_name
    from kernels.cache import cache_folder
    from kernels.provenance import machine

    found = {"assay's sources": sources(), "python": "{}.{}".format(*sys.version_info)}
    found |= dict.fromkeys(PACKAGES, "missing") | versions(PACKAGES)
    host = socket.gethostname()
    return About(found, machine(), cpu_name(), host, str(cache_folder().resolve()))


@cache
def sources(folder: Path = ROOT, rooms: tuple[str, ...] = ROOMS) -> str:
    """The first digits of sha256 over all sources of these rooms, by default of those that a worker
    imports."""
    digest = hashlib.sha256()
    for room in rooms:
        for path in sorted(p for p in (folder / room).rglob("*") if p.suffix in SOURCES):
            digest.update(f"\0{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]
