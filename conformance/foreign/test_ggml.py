"""Products that round activations as ggml does: ggml's own passes, and so does an equal one; other
roundings fail."""

import os
from pathlib import Path

import pytest

from conformance.support.rooms import ROOT
from kernels.foreign.candidate import Candidate
from kernels.foreign.judge import judge
from reference.table import OPS

LIBRARIES = "LLAMA_CPP_LIB_PATH"
PRODUCT = ROOT / "bench/solutions/ggml_linear.c"
OWN = """
// assay: op = "linear"
// assay: format = "Q4_0"
#include <math.h>
#include <stdint.h>
#include <string.h>
void linear(const float *x, const uint8_t *weight, float *out, int64_t tokens, int64_t hidden,
            int64_t n_out) {
  for (int64_t t = 0; t < tokens; t++)
    for (int64_t o = 0; o < n_out; o++) {
      const uint8_t *block = weight + o * (hidden / 32) * 18;
      float sum = 0;
      for (int64_t k = 0; k < hidden; k += 32, block += 18) {
        const float *part = x + t * hidden + k;
        float largest = 0;
        for (int j = 0; j < 32; j++) largest = fmaxf(largest, fabsf(part[j]));
        float step = largest / 127, inverse = largest ? 127 / largest : 0;
        int dot = 0;
        for (int j = 0; j < 16; j++)
          dot += ((block[2 + j] & 15) - 8) * (int)rintf(part[j] * inverse) +
                 ((block[2 + j] >> 4) - 8) * (int)rintf(part[j + 16] * inverse);
        _Float16 scale;
        memcpy(&scale, block, 2);
        sum += (float)dot * ((float)scale * (float)(_Float16)step);
      }
      out[t * n_out + o] = sum;
    }
}
"""


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("", ""),
        ("(float)(_Float16)step", "step"),  # Q8_0 keeps 11 bits of it
        ("rintf(part[j] *", "(part[j] *"),  # cut, not rounded
        ("dot += ", "if (j < 15) dot += "),
        ("127 / largest", "126 / largest"),
    ],
    ids=["right", "float32 scales", "cut", "a product less", "another step"],
)
def test_ggml_rounding_is_recognised(tmp_path: Path, right: str, wrong: str):
    """A product that rounds activations as ggml does is recognised by its numbers."""
    (tmp_path / "mine.c").write_text(OWN.replace(right, wrong))
    candidate = Candidate.of(tmp_path / "mine.c")
    report = judge(candidate, "linear", numerics="ggml", secret=3, shrink=False)
    assert report.passed == (not wrong), report.reason
    if not wrong:
        assert not judge(candidate, "linear", numerics="int8", secret=3, shrink=False).passed


@pytest.mark.skipif(LIBRARIES not in os.environ, reason=f"{LIBRARIES} says where libggml lies")
@pytest.mark.parametrize("format", OPS["linear"].formats)
def test_ggmls_own_products_pass(format: str):
    """ggml's products pass in every format, within the bound for its rounding."""
    report = judge(Candidate.of(PRODUCT), "linear", format, secret=5, shrink=False)
    assert report.passed, report.reason
