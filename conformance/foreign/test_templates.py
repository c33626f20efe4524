"""Templates for candidates: each loads, fails, and shows where to insert code."""

import shutil
from itertools import product
from pathlib import Path

import pytest

from conformance.support.program import assay as program
from conformance.support.program import fault
from kernels.foreign.candidate import Candidate
from kernels.foreign.judge import judge
from kernels.foreign.template import SUFFIXES, template
from reference.table import OPS

BEGUN = ("rms_norm", "linear", "attention", "rope_norm", "softmax", "greedy")


@pytest.mark.parametrize(
    ("kind", "name"), [*product(("c", "numba", "python"), BEGUN), ("cuda", "rms_norm")]
)
def test_an_unfilled_template_fails(tmp_path: Path, kind: str, name: str):
    """It compiles, is called, and writes nothing; the line to fill in is named."""
    if kind == "cuda" and not shutil.which("g++"):
        kind = "c"
    text = template(OPS[name], kind)
    assert "FILL IN" in text
    path = tmp_path / f"mine{SUFFIXES[kind]}"
    path.write_text(text)
    candidate = Candidate.of(path)
    assert candidate.manifest.op == name
    report = judge(candidate, name, shrink=False)
    assert report.verdict == "wrong", report.reason
    assert " written" in report.reason


def test_the_command_writes_a_template(tmp_path: Path):
    """It never overwrites a file."""
    path = tmp_path / "mine.c"
    asked = ("judge", "--template", "rms_norm", "--for", "c", path)
    code, stdout, stderr = program(*asked)
    assert code == 0, stderr
    assert "fill in" in stdout
    assert "File exists" in fault(program(*asked))
    assert "FILL IN" in path.read_text()
