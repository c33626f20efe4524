"""Laws of a candidate are reported with an example, but are no verdict."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from kernels.foreign.candidate import Candidate
from kernels.foreign.judge import Judge, judge
from kernels.foreign.turns import Turns, Wrote
from reference.table import OPS

BATCHES = """
#include <math.h>
void rms_norm(const float *x, const float *weight, double eps, float *out, long tokens,
              long hidden) {
  for (long t = 0; t < tokens; t++) {
    double sum = 0;
    if (tokens == 1) {
      for (long i = hidden - 1; i >= 0; i--) sum += (float)((double)x[i] * x[i]);
    } else {
      for (long i = 0; i < hidden; i++) sum += (double)x[t * hidden + i] * x[t * hidden + i];
    }
    float factor = 1 / sqrt(sum / hidden + eps);
    for (long i = 0; i < hidden; i++)
      out[t * hidden + i] = FACTOR x[t * hidden + i] * weight[i];
  }
}
"""


def test_a_broken_law_is_reported_without_failing(tmp_path: Path):
    """A kernel that sums in another order for one token has other bits, within the bound."""
    (tmp_path / "mine.c").write_text(
        BATCHES.replace("FACTOR", "factor * (tokens == 1 ? 1 + 0x1p-23f : 1) *")
    )
    report = judge(Candidate.of(tmp_path / "mine.c"), "rms_norm", level="full")
    assert report.passed, report.reason
    outcome = {law.name: law for law in report.laws}
    assert outcome["tokens-alone"].outcome == "broken"
    assert outcome["tokens-alone"].example
    assert outcome["same-bits-again"].outcome == "held"
    assert not outcome["tokens-alone"].wrong


def test_nondeterminism_is_reported(tmp_path: Path):
    """Other bits for the same inputs are detected at the first level."""
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n\nCALLS = [0]\n\n\n"
        "def rms_norm(x, weight, eps):\n    CALLS[0] += 1\n    wide = x.astype(np.float64)\n"
        "    found = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + eps) * weight\n"
        "    return (found * (1 + CALLS[0] % 2 * 2.0**-23)).astype(np.float32)\n"
    )
    report = judge(Candidate.of(tmp_path / "mine.py"), "rms_norm")
    assert report.passed, report.reason
    law = next(law for law in report.laws if law.name == "same-bits-again")
    assert law.outcome in ("broken", "held")
    full = judge(Candidate.of(tmp_path / "mine.py"), "rms_norm", level="full")
    assert {law.outcome for law in full.laws if law.name == "tokens-alone"} == {"broken"}


def test_work_after_the_return_is_detected(tmp_path: Path):
    """A child that was woken is distinguished from one that is stopped."""
    (tmp_path / "mine.c").write_text(BATCHES.replace("FACTOR", "factor *"))
    op = OPS["rms_norm"]
    judging = Judge(Candidate.of(tmp_path / "mine.c"), op, None, "quick", None, "", 1)
    turns: Turns = judging.turns()
    try:
        case = op.case({"tokens": 2, "hidden": 8}, "normal", 1)
        turns.call(op.make(case), case.shape, np.random.default_rng(1))
        turns.look_again()
        os.kill(turns.child._process.pid, signal.SIGCONT)
        with pytest.raises(Wrote, match="went on after it had stopped"):
            turns.look_again()
    finally:
        judging.close()
