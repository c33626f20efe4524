"""Somebody's kernel timed beside ours, and its page."""

import os
from pathlib import Path

import pytest

from bench.board.page import report as board_report
from bench.board.rows import Row
from bench.ops import judged
from bench.report.page import judged_page as page
from bench.report.page import page as board_page
from bench.tests.support.browser import chromium, complaints, show
from kernels.foreign.candidate import Candidate
from kernels.foreign.child import Limits
from kernels.foreign.judge import judge
from kernels.foreign.report import LawResult, Report, Timed
from reference.table import OPS

NORM = """
import time
import numpy as np


def rms_norm(x, weight, eps):
    wide = x.astype(np.float64)
    return (wide / np.sqrt((wide**2).mean(-1, keepdims=True) + eps) * weight).astype(np.float32)
"""
SHAPE = {"tokens": 4, "hidden": 256}


def quiet(_):
    return lambda *_: None


@pytest.fixture
def right(tmp_path: Path):
    (tmp_path / "mine.py").write_text(NORM)
    candidate = Candidate.of(tmp_path / "mine.py")
    return candidate, judge(candidate, "rms_norm", level="full", secret=3)


def test_it_is_timed_in_turns(right):
    """With PyTorch's where there is one, and ours; its page tells each."""
    candidate, report = right
    found = judged.timed(report, candidate, OPS["rms_norm"], Limits(), SHAPE, quiet)
    assert found.passed, found.reason
    assert found.times[0].name == report.candidate
    assert found.times[0].ratio == 1
    assert {row.shape for row in found.times} == {"tokens=4,hidden=256"}
    assert any(row.name.startswith("assay ") for row in found.times)
    timed = [row for row in found.times if row.samples]
    assert all(row.low <= row.ratio <= row.high and row.seconds > 0 for row in timed)
    (ggml,) = [row for row in found.times if row.name == "ggml"]
    if judged.GGML not in os.environ:
        assert ggml.note == "absent: LLAMA_CPP_LIB_PATH says where its libraries lie"
    text = page(found)
    assert all(row.name in text for row in found.times)
    assert all(law.name in text for law in found.laws)


def test_faster_than_the_machine_is_refused(right, monkeypatch: pytest.MonkeyPatch):
    """A time below what memory and arithmetic allow is the clock's error or a trick's."""
    candidate, report = right
    monkeypatch.setattr(judged, "race", lambda samplers, *_: dict.fromkeys(samplers, [1e-9] * 8))
    found = judged.timed(report, candidate, OPS["rms_norm"], Limits(), SHAPE, quiet)
    assert found.verdict == "refused"
    assert "faster than this machine can be" in found.reason


def test_wrong_where_it_is_timed_is_refused(right, tmp_path: Path):
    """It was right on all cases, and is not on the hundredth call of a size."""
    _, report = right
    (tmp_path / "mine.py").write_text(
        NORM.replace("    wide =", "    CALLS.append(1)\n    wide =", 1)
        .replace("eps) *", "eps) * (1 + (len(CALLS) > 2)) *")
        .replace("import time", "CALLS = []")
    )
    candidate = Candidate.of(tmp_path / "mine.py")
    found = judged.timed(report, candidate, OPS["rms_norm"], Limits(), SHAPE, quiet)
    assert found.verdict == "refused"
    assert "while it was timed" in found.reason


def test_pages_fit_a_phone_and_a_desk(tmp_path: Path):
    """The judge's and the board's do not scroll sideways, whatever names and reasons are long; the
    board's solutions stay in view beside what is told of them."""
    long = "a_name_that_never_ends_" * 5
    law = LawResult("tokens-alone", "broken", "out[0, 0] is 1, " * 20)
    quick = LawResult("cuts-change-no-bit", "not asked", "at level quick")
    times = Timed(long, "tokens=1,hidden=2048", 1e-3, 9), Timed("ggml", "", 0.0, 0, note="absent")
    judged_report = Report(long, "source", "linear", "Q4_0", "ggml", "full", "wrong", reason=long,
                           laws=(law, quick), times=times)  # fmt: skip
    rows = [Row("cpu", "linear", "Q4_0", "tokens=1", 1, long, "passed", rank=1, seconds=1e-3,
                ratio=1.0, low=1.0, high=1.0, ordinary=e, broken=("tokens-alone",))
            for e in (1e-5, 3.0)]  # fmt: skip
    pages = {"judge": page(judged_report), "board": board_page(board_report(rows))}
    with chromium(tmp_path / "profile") as driver:
        for name, text in pages.items():
            (tmp_path / f"{name}.html").write_text(text)
            for width in (390, 1280):
                show(driver, tmp_path / f"{name}.html", width)
                whole = driver.execute_script("return document.documentElement.scrollWidth")
                assert whole <= width, name
                assert complaints(driver) == []
                if name == "board" and width < 600:
                    first = "getComputedStyle(document.querySelector('tbody th')).position"
                    assert driver.execute_script(f"return {first}") == "sticky"


def test_the_page_escapes_what_a_candidate_says():
    """A name or a reason is text."""
    report = Report("<b>mine</b>", "python", "rms_norm", "", "exact", "quick", "raised", "<script>")
    text = page(report)
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert 'name="viewport"' in text
