"""The conformance suite on a fleet: lists the cases and runs a share of them.

This module is also the pytest plugin that writes a line of JSON for each test to the file that
ASSAY_FLEET_TOLD names.
"""

import importlib.util
import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from bench.child import last_line
from bench.fleet.about import sources
from bench.fleet.worker import WorkerError, address, child

TOLD = "ASSAY_FLEET_TOLD"
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")
REPLAY = re.compile(r"^(?:E\s+)?.*?((?:assay op|python -m|pytest) .*)$", re.MULTILINE)
BEGUN = "begun"
MOST = 20_000  # characters of a failure


@dataclass(frozen=True, slots=True)
class Case:
    """The outcome of a test: "passed", "failed", "skipped" or "error"; `text` is pytest's
    message."""

    test: str
    outcome: str
    text: str = ""

    @property
    def replay(self) -> str:
        """The command that repeats it: the failure's own, or the test by itself."""
        said = REPLAY.search(self.text)
        return said[1] if said else f"python -m pytest '{self.test}'"


def root() -> Path:
    """The folder that contains conformance/. ValueError if it is not installed."""
    spec = importlib.util.find_spec("conformance")
    if spec is None or not spec.submodule_search_locations:
        raise ValueError("there is no folder conformance/ here: it is not installed")
    return Path(spec.submodule_search_locations[0]).parent


def cases(chosen: Sequence[str]) -> list[str]:
    """Ids of the tests that pytest would run with these arguments."""
    with tempfile.TemporaryDirectory(prefix="assay-") as folder:
        done = _pytest(("--collect-only", *chosen), Path(folder) / "told", "")
        if done.returncode:
            raise ValueError(f"the tests cannot be listed: {last_line(done.stdout + done.stderr)}")
        return [line for line in done.stdout.splitlines() if "::" in line]


def shares(tests: Sequence[str], most: int) -> Iterator[list[str]]:
    """Groups of tests of one file, which share fixtures, at most so many each."""
    for _, own in groupby(tests, lambda test: test.partition("::")[0]):
        while share := [*islice(own, most)]:
            yield share


@dataclass(frozen=True, slots=True)
class Suite:
    """The suite's tests, whose sources have this digest."""

    sources: str

    @classmethod
    def of_here(cls) -> "Suite":
        return cls(sources(root(), ("conformance",)))

    def __call__(self, tests: Sequence[str], asked: str) -> list[Case]:
        """Run these tests here. Raises `WorkerError` where the suite has other sources."""
        try:
            here = self.of_here()
        except ValueError as error:
            raise WorkerError(address(), str(error)) from None
        if here != self:
            why = f"conformance's sources {here.sources} instead of {self.sources}"
            raise WorkerError(address(), why)
        return run(tests, asked)


def run(tests: Sequence[str], asked: str) -> list[Case]:
    """Run these tests here. One that crashes pytest is an error, and those after it are run by
    themselves."""
    found: list[Case] = []
    left = [*tests]
    while left:
        with tempfile.TemporaryDirectory(prefix="assay-") as folder:
            told = Path(folder) / "told"
            done = _pytest(left, told, asked)
            lines = told.read_text().splitlines() if told.exists() else []
        said = {case["test"]: Case(**case) for case in map(json.loads, lines)}
        begun = [case.test for case in said.values() if case.outcome == BEGUN]
        found += [case for case in said.values() if case.outcome != BEGUN]
        left = [test for test in left if test not in said]
        if done.returncode < 0 and begun:
            why = f"it took pytest down: {signal.Signals(-done.returncode).name}"
            found.append(Case(begun[0], "error", why))
        elif left or begun:
            why = last_line(done.stderr) or last_line(done.stdout)
            raise WorkerError(address(), f"its pytest does not run: {why}")
    return found


def _pytest(words: Iterable[str], told: Path, asked: str) -> Any:
    plugin = "-p", __name__
    folder = root()
    more = {TOLD: str(told), "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])}
    return child((*PYTEST, *plugin, "--rootdir", str(folder), *words), asked, more, folder)


_worst: dict[str, Case] = {}


def pytest_runtest_logstart(nodeid: str) -> None:
    """pytest's hook: records the start, since a test that crashes the process reports nothing
    else."""
    _tell(Case(nodeid, BEGUN))


def pytest_runtest_logreport(report: Any) -> None:
    """pytest's hook: the worst of setup, call and teardown is the outcome."""
    before = _worst.get(report.nodeid, Case(report.nodeid, "passed"))
    if report.failed:
        outcome = "failed" if report.when == "call" else "error"
        before = Case(report.nodeid, outcome, str(report.longrepr)[-MOST:])
    elif report.skipped and before.outcome == "passed":
        before = Case(report.nodeid, "skipped")
    _worst[report.nodeid] = before
    if report.when == "teardown":
        _tell(_worst.pop(report.nodeid))


def _tell(case: Case) -> None:
    if path := os.environ.get(TOLD):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(case)) + "\n")
