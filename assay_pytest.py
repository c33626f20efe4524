"""pytest for repositories of kernels: a fixture that judges a function, and `--assay`, which judges
what pyproject.toml lists, and what the repository's package brings by entry points.

It is installed beside the package assay, and imports nothing of it: a repository may have packages
of its own that are called kernels or bench. Kernels are judged by the program, in a process apart.
"""

import inspect
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PYTHON = (sys.executable, "-P")  # where the working folder's modules are none of Assay's
BY_NAME = """
import assay, json, sys
found = assay.judge(sys.argv[1], level="full")
print(json.dumps({"passed": found.passed, "failure": found.failure}))
"""
GROUPS = ("assay.kernels", "assay.ops")
KEYS = ("file", "op", "format", "level", "numerics")

Report = dict[str, Any]  # as `assay judge --json` prints it
Judge = Callable[..., Report]


class AssayError(Exception):
    """A table in pyproject.toml that says nothing that can be judged."""


class KernelError(Exception):
    """A kernel that is not right; the message has the case and the command that replays it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("assay")
    group.addoption(
        "--assay", action="store_true", help="judge the kernels that pyproject.toml names, too"
    )


@pytest.hookimpl(tryfirst=True)  # before -k and -m choose among them
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """With --assay there is an item for each kernel of the table."""
    if config.getoption("--assay"):
        path = config.rootpath / "pyproject.toml"
        try:
            items += KernelTable.from_parent(session, path=path).collect()
        except AssayError as error:
            raise pytest.UsageError(f"{path}: {error}") from None


class KernelTable(pytest.File):
    """A pyproject.toml: in the table [tool.assay] `kernels` is a list of tables with the keys
    `file` (FILE or FILE:NAME, from where pyproject.toml lies) and `op`, and if wanted `format`,
    `level` and `numerics`. Kernels that its package brings by entry points need no list."""

    def collect(self) -> Iterator[pytest.Item]:
        if not self.path.is_file():
            raise AssayError("--assay wants this file, with a table [tool.assay]")
        try:
            said = tomllib.loads(self.path.read_text())
        except tomllib.TOMLDecodeError as error:
            raise AssayError(str(error)) from None
        table, project = said.get("tool", {}).get("assay", {}), said.get("project", {})
        kernels = table.get("kernels", []) if isinstance(table, dict) else None
        brings = any(group in project.get("entry-points", {}) for group in GROUPS)
        if not isinstance(kernels, list) or not (kernels or brings):
            raise AssayError('[tool.assay] has no list kernels = [{ file = "…", op = "…" }]')
        for kernel in kernels:
            asked = _checked(kernel)
            name = " ".join(filter(None, (asked["op"], asked["format"], asked["file"])))
            yield KernelItem.from_parent(self, name=name, asked=asked)
        if brings:
            for name in brought(project.get("name", "")):
                yield BroughtItem.from_parent(self, name=name)


def brought(package: str) -> list[str]:
    """The kernels that an installed package brings; AssayError if there are none."""
    done = _said(*PYTHON, "-m", "assay", "ops", "--json")
    kernels = json.loads(done.stdout)["kernels"] if not done.returncode else []
    owners = ((k["kernel"], k.get("package", "").partition(" ")[0]) for k in kernels)
    found = [kernel for kernel, owner in owners if owner and _plain(owner) == _plain(package)]
    if not found:
        why = done.stderr.strip() or "pip install -e . ?"
        raise AssayError(f"no kernel of the package {package} is installed: {why}")
    return found


def _plain(package: str) -> str:
    """A package's name as indices compare it."""
    return re.sub(r"[-_.]+", "-", package).lower()


def _checked(kernel: Any) -> dict[str, str]:
    """A row of the table, "" where it says nothing."""
    if not isinstance(kernel, dict) or not all(isinstance(v, str) for v in kernel.values()):
        raise AssayError(f"[tool.assay]: {kernel!r} is no table of words")
    if unknown := sorted(set(kernel) - set(KEYS)):
        raise AssayError(f"[tool.assay]: {unknown[0]!r} is none of {', '.join(KEYS)}")
    if missing := [key for key in KEYS[:2] if not kernel.get(key)]:
        raise AssayError(f"[tool.assay]: {kernel!r} lacks {missing[0]!r}")
    return {key: kernel.get(key, "") for key in KEYS}


class _Judged(pytest.Item):
    """A kernel to be judged, as a test."""

    def repr_failure(self, excinfo: Any, style: Any = None) -> Any:
        """What is wrong with the kernel; where in pytest it was noticed helps nobody."""
        if isinstance(excinfo.value, KernelError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, self.name


class KernelItem(_Judged):
    """One of the table."""

    def __init__(self, *, asked: dict[str, str], **rest: Any) -> None:
        super().__init__(**rest)
        self.asked = asked

    def runtest(self) -> None:
        judged(**self.asked, folder=self.path.parent)


class BroughtItem(_Judged):
    """One that the package brings, which is tried anew, with its op's laws."""

    def runtest(self) -> None:
        done = _said(*PYTHON, "-c", BY_NAME, self.name)
        if done.returncode:
            raise KernelError((done.stderr.strip().splitlines() or ["it ended"])[-1])
        if not (found := json.loads(done.stdout))["passed"]:
            op, _, variant, *formats = self.name.split("/")
            words = " ".join((op, "--variant", variant, *(f"--format {f}" for f in formats)))
            raise KernelError(f"{self.name}: {found['failure']}\nagain: assay op {words}")


@pytest.fixture(scope="session")
def assay_judge() -> Judge:
    """`assay_judge(function, op="rms_norm")` judges a function of a module, or a file by its path,
    and fails with the smallest failing case and the command that replays it; else it returns the
    report. `format`, `level` and `numerics` are those of `assay judge`."""

    def judge(
        kernel: Callable[..., Any] | str | Path,
        op: str,
        format: str = "",
        level: str = "",
        numerics: str = "",
    ) -> Report:
        __tracebackhide__ = True
        file = str(kernel) if isinstance(kernel, str | Path) else _where(kernel)
        try:
            return judged(file, op, format, level, numerics)
        except KernelError as error:
            why = str(error)
        return pytest.fail(why, pytrace=False)

    return judge


def _where(function: Callable[..., Any]) -> str:
    """FILE:NAME of a function, also of one that Numba compiles."""
    plain = inspect.unwrap(getattr(function, "py_func", function))
    file, name = inspect.getsourcefile(plain), plain.__qualname__
    if file is None or "<" in name:
        raise ValueError(f"{name} is no function of a module's top level: assay judges files")
    return f"{file}:{name}"


def judged(
    file: str,
    op: str,
    format: str = "",
    level: str = "",
    numerics: str = "",
    folder: Path | None = None,
) -> Report:
    """The report of a kernel that is right; KernelError of one that is not."""
    said = {"--op": op, "--format": format, "--level": level, "--numerics": numerics}
    words = [word for option, value in said.items() if value for word in (option, value)]
    done = _said(*PYTHON, "-m", "assay", "judge", file, *words, "--json", folder=folder)
    try:
        report: Report = json.loads(done.stdout)
    except ValueError:
        raise KernelError(
            done.stderr.strip() or f"assay judge ended with {done.returncode}"
        ) from None
    if not report["passed"]:
        raise KernelError(_told(report))
    return report


def _said(*command: str, folder: Path | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)


def _told(report: Report) -> str:
    """Why a kernel is refused, in lines."""
    about = " ".join(filter(None, (report["candidate"], "as", report["op"], report["format"])))
    lines = [f"{about}: {report['verdict']}: {report['reason']}"]
    if case := (report["shrunk"] or {}).get("case"):
        sizes = ", ".join(f"{axis}={size}" for axis, size in case["shape"].items())
        lines.append(f"smallest case found: {sizes}, {case['values']} values, seed {case['seed']}")
    if report["replay"]:
        lines.append(f"again: {report['replay']}")
    return "\n".join(lines)
