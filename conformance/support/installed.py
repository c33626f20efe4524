"""Folders with installed packages that provide kernels and ops, for child processes."""

import os
import shutil
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess

from conformance.support.child import run
from conformance.support.rooms import ROOT

EXAMPLE = ROOT / "docs/examples/assay-example"


def environment(*folders: Path, **more: str) -> dict[str, str]:
    """Environment variables with which Python finds the rooms and the packages in these folders."""
    path = os.pathsep.join(map(str, (ROOT, *folders)))
    return {**os.environ, "PYTHONPATH": path, **more}


def program(*arguments: object, folders: tuple[Path, ...] = ()) -> "CompletedProcess[str]":
    """Run `assay` with the packages in these folders."""
    command = (sys.executable, "-P", "-m", "assay", *arguments)
    return run(*command, env=environment(*folders), timeout=900)


def install_example(folder: Path) -> Path:
    """Install a copy of the example by pip; returns the folder."""
    sources, target = folder / "sources", folder / "installed"
    shutil.copytree(EXAMPLE, sources, ignore=shutil.ignore_patterns("build", "*.egg-info"))
    offline = ("--no-index", "--no-build-isolation", "--no-deps", "--target", target)
    done = run(sys.executable, "-m", "pip", "install", "--quiet", *offline, sources)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return target


def place_assay(folder: Path) -> Path:
    """The entry points of an installed Assay, as a folder."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    return place(folder, "assay-here", {}, points)


def place(
    folder: Path, name: str, sources: Mapping[str, str], points: Mapping[str, Mapping[str, str]]
) -> Path:
    """Install a distribution as an installer would: sources by path, entry points by group."""
    for path, text in sources.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    about = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    groups = (
        f"[{group}]\n" + "".join(f"{entry} = {value}\n" for entry, value in entries.items())
        for group, entries in points.items()
    )
    (about / "entry_points.txt").write_text("\n".join(groups))
    return folder
