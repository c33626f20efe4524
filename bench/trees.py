"""Source trees to compare: the working tree, or a commit checked out to a folder of its own."""

import io
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import run

from bench.machine.conditions import ROOT, git
from kernels.kernel import Kernel
from kernels.table import KERNELS

MEASURED = ("reference", "kernels", "engine")  # a commit's own rooms
RULER = ("bench", "data")  # the present ones, whatever is measured


class TreeError(ValueError):
    """A commit or variant that does not exist."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: a tree, and the variant that replaces others there."""

    name: str
    folder: Path
    variant: str = ""

    def kernel(self, kernel: Kernel) -> str:
        """The kernel's counterpart on this side."""
        parts = (kernel.op, kernel.target, self.variant or kernel.variant, kernel.format)
        return "/".join(filter(None, parts))


@contextmanager
def side(name: str) -> Iterator[Side]:
    """`.` for the working tree, a variant of it, or any commit that git knows."""
    if name == ".":
        yield Side("working tree", ROOT)
    elif name in {kernel.variant for kernel in KERNELS}:
        yield Side(name, ROOT, name)
    else:
        commit = git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        if not commit:
            raise TreeError(f"{name}: no stored run, commit or variant is called so")
        with tempfile.TemporaryDirectory(prefix="assay-compare-") as folder:
            _extract(commit, Path(folder))
            yield Side(f"{name} ({commit[:7]})" if name not in commit else name, Path(folder))


def _extract(commit: str, folder: Path) -> None:
    rooms = [room for room in MEASURED if git("ls-tree", commit, "--", room)]
    if missing := sorted(set(MEASURED) - set(rooms)):
        raise TreeError(f"{commit[:12]} has no folder {missing[0]}/")
    packed = run(
        ["git", "-C", str(ROOT), "archive", commit, *rooms], capture_output=True, check=True
    )
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    for room in RULER:
        (folder / room).symlink_to(ROOT / room)
