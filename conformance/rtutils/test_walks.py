"""The walks of docs/walks.md: their files and names are right, and complete for a token's path."""

import inspect
import re
from pathlib import Path

import pytest

from conformance.support.rooms import ROOT
from engine import Engine, SamplingParams
from kernels.cpu.runtime.team import Program, Team

ROW = re.compile(r"^\| `([\w/]+\.py)` \| (.*) \|$", re.MULTILINE)
NAME = re.compile(r"`(?:[A-Z]\w*\.)?(\w+)`")
PAGE = (ROOT / "docs" / "walks.md").read_text()
TOKEN, WEIGHT = (ROW.findall(part) for part in PAGE.split("\n## ")[1:])


@pytest.mark.parametrize("walk", [TOKEN, WEIGHT], ids=["token", "weight"])
def test_a_walk_passes_at_most_eight_files(walk: list[tuple[str, str]]) -> None:
    """Each file has the function or class that the page names."""
    assert 5 < len(walk) <= 8
    for file, told in walk:
        source = (ROOT / file).read_text()
        for name in NAME.findall(told):
            if name not in ("Value", "py"):
                assert re.search(rf"\b(def|class) {name}\b", source), f"{file} has no {name}"


def test_walks_cover_all_callers_of_the_team(monkeypatch: pytest.MonkeyPatch) -> None:
    """All callers of the threads are on the page."""
    callers: set[str] = set()
    run = Team.run

    def watched(team: Team, program: Program) -> None:
        files = (Path(frame.filename) for frame in inspect.stack()[1:])
        callers.update(str(f.relative_to(ROOT)) for f in files if f.is_relative_to(ROOT / "engine"))
        run(team, program)

    with Engine.load("story", threads=1, context=64) as engine:
        monkeypatch.setattr(Team, "run", watched)
        list(engine.stream("Once", SamplingParams(max_tokens=3)))
    assert callers - {"engine/generation/decoding.py"} <= {file for file, _ in TOKEN}
    assert "engine/compile/executable.py" in callers
