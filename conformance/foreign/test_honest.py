"""Nobody is accused falsely: honest functions pass, or fail by numbers alone that are told."""

import os
import re
from pathlib import Path

import pytest

from conformance.support.rooms import ROOT
from kernels.foreign.candidate import Candidate
from kernels.foreign.judge import judge
from kernels.foreign.report import Report

HONEST = Path(__file__).parent / "honest"
PEERS = ROOT / "bench/contenders/torch_ops.py"  # which kernels are timed against
FUNCTIONS = [
    (path, name)
    for path in (*sorted(HONEST.glob("*.py")), PEERS)
    for name in re.findall(r"^def (\w+)\(", path.read_text(), re.MULTILINE)
]
# Who is less exact than the op's bound for float32, and where.
INEXACT = {
    ("torch_ops", "layer_norm"): "squares of numbers beyond 1e19 are infinite",
    ("torch_ops", "gelu"): "its tanh cancels for numbers below -2",
    ("torch_ops", "gelu_erf"): "1 + erf cancels for numbers below -2",
}
NUMBERS = re.compile(r"(a (second|third) call: )?\w+\[.*\] is \S+, expected \S+: off by")
LIBRARIES = "LLAMA_CPP_LIB_PATH"
GGML = [  # the function, the op, its format and what it rounds activations to
    ("dequantise_q4_0", "dequantise", "Q4_0", "", True),
    ("dequantise_q8_0", "dequantise", "Q8_0", "", True),
    # float16 scales of activations, where the bound for int8 has float32 ones
    ("linear_q4_0", "linear", "Q4_0", "int8", False),
]


def demand_numbers(report: Report):
    """A verdict by numbers."""
    assert report.passed or (report.verdict == "wrong" and NUMBERS.match(report.reason)), (
        f"{report.verdict}: {report.reason}"
    )


def test_there_are_many():
    """Of every library that people have."""
    assert len(FUNCTIONS) + len(GGML) >= 30
    assert {path.stem for path, _ in FUNCTIONS} >= {"numpy_ops", "scipy_ops", "torch_ops"}


@pytest.mark.parametrize(
    ("path", "name"), FUNCTIONS, ids=[f"{path.stem}-{name}" for path, name in FUNCTIONS]
)
def test_an_honest_function_is_judged_by_its_numbers(path: Path, name: str):
    """It passes, but for those whose error is known to be larger."""
    if path.stem in ("scipy_ops", "torch_ops"):
        package = path.stem.removesuffix("_ops")
        pytest.importorskip(package, reason=f"{package} is not installed: make test-transformers")
    report = judge(Candidate.of(f"{path}:{name}"), name, secret=5, shrink=False)
    demand_numbers(report)
    assert report.passed == ((path.stem, name) not in INEXACT), report.reason


@pytest.mark.skipif(LIBRARIES not in os.environ, reason=f"{LIBRARIES} says where libggml lies")
@pytest.mark.parametrize(("name", "op", "format", "numerics", "passes"), GGML)
def test_ggml_is_judged_by_its_numbers(
    name: str, op: str, format: str, numerics: str, passes: bool
):
    """What llama.cpp computes with, through its shared libraries."""
    folder = os.environ[LIBRARIES]
    flags = ["-O2", f"-L{folder}", f"-Wl,-rpath,{folder}", "-lggml-cpu", "-lggml-base"]
    candidate = Candidate.of(f"{HONEST / 'ggml.c'}:{name}", flags=flags)
    report = judge(candidate, op, format, numerics=numerics, secret=5, shrink=False)
    demand_numbers(report)
    assert report.passed == passes, report.reason
