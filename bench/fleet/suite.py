"""The suite's cases dealt out: which there are, and what became of a share of them.

This module is also the plugin that tells, a line of JSON for each test in the file that
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
from pathlib import Path
from typing import Any

from bench.fleet.about import sources
from bench.fleet.worker import WorkerError, address, child, last_line

TOLD = "ASSAY_FLEET_TOLD"
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")
REPLAY = re.compile(r"^(?:E\s+)?.*?((?:assay op|python -m|pytest) .*)$", re.MULTILINE)
BEGUN = "begun"
MOST = 20_000  # characters of a failure


@dataclass(frozen=True, slots=True)
class Case:
    """What became of a test: "passed", "failed", "skipped" or "error"; `text` is what pytest says
    of a failure."""

    test: str
    outcome: str
    text: str = ""

    @property
    def replay(self) -> str:
        """The command that shows it again: what the failure says, or the test by itself."""
        said = REPLAY.search(self.text)
        return said[1] if said else f"python -m pytest '{self.test}'"


def root() -> Path:
    """The folder that conformance/ lies in. ValueError if it is not installed."""
    spec = importlib.util.find_spec("conformance")
    if spec is None or not spec.submodule_search_locations:
        raise ValueError("there is no folder conformance/ here: it is not installed")
    return Path(spec.submodule_search_locations[0]).parent


def cases(chosen: Sequence[str]) -> list[str]:
    """The ids of the tests that pytest would run with these words."""
    with tempfile.TemporaryDirectory(prefix="assay-") as folder:
        done = _pytest(("--collect-only", *chosen), Path(folder) / "told", "")
        if done.returncode:
            raise ValueError(f"the tests cannot be listed: {last_line(done.stdout + done.stderr)}")
        return [line for line in done.stdout.splitlines() if "::" in line]


def shares(tests: Sequence[str], most: int) -> Iterator[list[str]]:
    """Tests of one file together, whose fixtures they share, at most so many."""
    share: list[str] = []
    for test in tests:
        if share and (len(share) == most or share[0].split("::")[0] != test.split("::")[0]):
            yield share
            share = []
        share.append(test)
    if share:
        yield share


@dataclass(frozen=True, slots=True)
class Suite:
    """The suite's tests, whose sources have this digest."""

    sources: str

    @classmethod
    def of_here(cls) -> "Suite":
        return cls(sources(root(), ("conformance",)))

    def __call__(self, tests: Sequence[str], asked: str) -> list[Case]:
        """What became of these tests here. Raises `WorkerError` where the suite is another."""
        try:
            here = self.of_here()
        except ValueError as error:
            raise WorkerError(address(), str(error)) from None
        if here != self:
            why = f"conformance's sources {here.sources} instead of {self.sources}"
            raise WorkerError(address(), why)
        return run(tests, asked)


def run(tests: Sequence[str], asked: str) -> list[Case]:
    """What became of these tests here. One that takes pytest down is an error, and those behind it
    are run by themselves."""
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
    """pytest's hook: a test that takes the process down is one that had begun."""
    _tell(Case(nodeid, BEGUN))


def pytest_runtest_logreport(report: Any) -> None:
    """pytest's hook: of set-up, call and tear-down the worst is the test's outcome."""
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
