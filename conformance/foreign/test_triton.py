"""Triton kernels, by Triton's interpreter without a GPU."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from kernels.foreign.candidate import Candidate
from kernels.foreign.judge import judge
from kernels.foreign.report import INTERPRETED
from kernels.foreign.template import template
from reference.table import OPS

pytestmark = pytest.mark.skipif(
    not (find_spec("triton") and find_spec("torch")),
    reason="triton or torch is not installed: make test-transformers",
)
FILLED = """\
    row = tl.program_id(0)
    sums = tl.zeros((BLOCK,), tl.float32)
    for begin in range(0, hidden, BLOCK):
        i = begin + tl.arange(0, BLOCK)
        v = tl.load(x + row * hidden + i, mask=i < hidden, other=0.0)
        sums += v * v
    factor = 1 / tl.sqrt(tl.sum(sums) / hidden + eps)
    for begin in range(0, hidden, BLOCK):
        i = begin + tl.arange(0, BLOCK)
        v = tl.load(x + row * hidden + i, mask=i < hidden, other=0.0)
        w = tl.load(weight + i, mask=i < hidden, other=0.0)
        tl.store(out + row * hidden + i, v * factor * w, mask=i < hidden)
"""
LINEAR = """\
# assay: takes = "tokens <= 33"
import torch
import triton
import triton.language as tl


@triton.jit
def product(x, weight, out, tokens, hidden, rows, T: tl.constexpr, R: tl.constexpr,
            K: tl.constexpr):
    t = (tl.program_id(0) * T + tl.arange(0, T))[:, None]
    r = (tl.program_id(1) * R + tl.arange(0, R))[None, :]
    sums = tl.zeros((T, R), tl.float32)
    for begin in range(0, hidden, K):
        i, j = begin + tl.arange(0, K)[None, :], begin + tl.arange(0, K)[:, None]
        a = tl.load(x + t * hidden + i, mask=(t < tokens) & (i < hidden), other=0.0)
        b = tl.load(weight + r * hidden + j, mask=(r < rows) & (j < hidden), other=0.0)
        sums = tl.dot(a, b, sums, input_precision="ieee")
    tl.store(out + t * rows + r, sums, mask=(t < tokens) & (r < rows))


def linear(x, weight, out, tokens, hidden, n_out):
    grid = (triton.cdiv(tokens, 32), triton.cdiv(n_out, 64))
    product[grid](x, weight.view(torch.float32), out, tokens, hidden, n_out, T=32, R=64, K=64)
"""
OUTSIDE = "the call ended with SIGSEGV: it reads or writes outside of its arrays"
SHORT = LINEAR.replace("sums, mask=(t < tokens)", "sums, mask=(t < tokens - 1)")


def filled(text: str = FILLED) -> str:
    """The template with a kernel, for few tokens, since the interpreter is slow."""
    said, _, rest = template(OPS["rms_norm"], "triton").partition("    pass\n")
    return f'# assay: takes = "tokens <= 8"\n{said}{text}{rest}'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (template(OPS["rms_norm"], "triton"), "out[0, 0] was not written"),
        (filled(), ""),
        (filled(FILLED.replace(" + eps", "")), "out["),
        (filled(FILLED.replace("w, mask=i < hidden", "w, mask=i <= hidden")), OUTSIDE),
        (
            filled().replace("def rms_norm", "def norm").replace("kernel", "rms_norm"),
            "it cannot be",
        ),
    ],
    ids=["template", "right", "no eps", "one element more", "no launch"],
)
def test_a_filled_in_template_is_judged(tmp_path: Path, text: str, reason: str):
    """A right one passes; a wrong formula, a wrong mask and a missing grid are reported."""
    path = tmp_path / "mine.py"
    path.write_text(text)
    report = judge(Candidate.of(path), "rms_norm", secret=7, shrink=False)
    assert report.passed == (not reason), report.reason
    assert report.reason.startswith(reason)
    assert (INTERPRETED in report.notes) == ("loaded" not in report.reason)


@pytest.mark.parametrize(("text", "passes"), [(LINEAR, True), (SHORT, False)])
def test_the_command_judges_a_triton_product(tmp_path: Path, inside, text: str, passes: bool):
    """From the shell a right product passes, and one whose mask leaves out the last row fails."""
    path = tmp_path / "mine.py"
    path.write_text(text)
    code, stdout, stderr = inside("judge", f"{path}:linear", "--op", "linear", "--json")
    assert code == (not passes), stderr
    told = json.loads(stdout)
    assert told["passed"] == passes, told["reason"]
    assert INTERPRETED in told["notes"]
    assert passes or "was not written" in told["reason"]
