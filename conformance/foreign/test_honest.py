"""No false accusations: honest functions pass, or fail only by numbers, which are reported."""

import os
import re
from pathlib import Path

import pytest

from conformance.support.rooms import ROOT
from kernels.foreign.candidate import Candidate
from kernels.foreign.judge import judge
from kernels.foreign.report import Report

SOLUTIONS = ROOT / "bench/solutions"  # which kernels are timed against, and boards rank
PYTHON, C = r"^def (\w+)\(", r"^void (\w+)\("
FUNCTIONS = [
    (path, name)
    for path in sorted(SOLUTIONS.glob("*.py"))
    for name in re.findall(PYTHON, path.read_text(), re.MULTILINE)
]
PACKAGES = {"scipy_ops": "scipy", "torch_ops": "torch", "onednn_bf16": "torch"}
# Who is less exact than the op's bound for float32, and where.
INEXACT = {
    ("torch_ops", "layer_norm"): "squares of numbers beyond 1e19 are infinite",
    ("torch_ops", "attention"): "an infinite query meets the zero key of the cell for a sink",
    ("onednn_bf16", "linear"): "its output is bfloat16, too",
    ("ggml_ops", "relu"): "it makes zero of NaN",
    ("ggml_ops", "softplus"): "log(1 + e^x) has no digits for numbers far below zero",
    ("ggml_ops", "gelu"): "its tanh form is a table of float16",
    ("ggml_ops", "gelu_erf"): "1 + erf cancels for numbers below -2",
    ("torch_ops", "gelu"): "its tanh cancels for numbers below -2",
    ("torch_ops", "gelu_erf"): "1 + erf cancels for numbers below -2",
}
NUMBERS = re.compile(r"(a (second|third) call: )?\w+\[.*\] is \S+, expected \S+: off by")
LIBRARIES = "LLAMA_CPP_LIB_PATH"
GGML = re.findall(C, (SOLUTIONS / "ggml_ops.c").read_text(), re.MULTILINE)


def assert_numbers(report: Report):
    """Assert that a verdict is about numbers."""
    assert report.passed or (report.verdict == "wrong" and NUMBERS.match(report.reason)), (
        f"{report.verdict}: {report.reason}"
    )


def test_honest_functions_are_many():
    """There are functions from every common library."""
    assert len(FUNCTIONS) + len(GGML) >= 30
    assert {path.stem for path, _ in FUNCTIONS} >= {"numpy_ops", "scipy_ops", "torch_ops"}


@pytest.mark.parametrize(
    ("path", "name"), FUNCTIONS, ids=[f"{path.stem}-{name}" for path, name in FUNCTIONS]
)
def test_an_honest_function_is_judged_by_its_numbers(path: Path, name: str):
    """It passes, unless its error is known to be larger."""
    if package := PACKAGES.get(path.stem):
        pytest.importorskip(package, reason=f"{package} is not installed: make test-transformers")
    report = judge(Candidate.of(f"{path}:{name}"), name, secret=5, shrink=False)
    assert_numbers(report)
    assert report.passed == ((path.stem, name) not in INEXACT), report.reason


@pytest.mark.skipif(LIBRARIES not in os.environ, reason=f"{LIBRARIES} says where libggml lies")
@pytest.mark.parametrize("name", GGML)
def test_ggml_is_judged_by_its_numbers(name: str):
    """llama.cpp's own compute functions, through its shared libraries."""
    path = SOLUTIONS / "ggml_ops.c"
    report = judge(Candidate.of(f"{path}:{name}"), name, secret=5, shrink=False)
    assert_numbers(report)
    assert report.passed == (("ggml_ops", name) not in INEXACT), report.reason


@pytest.mark.skipif(LIBRARIES not in os.environ, reason=f"{LIBRARIES} says where libggml lies")
def test_ggml_s_attention_is_judged_by_its_numbers():
    """Its masks are float16, which cannot hold every distance times a slope."""
    path = SOLUTIONS / "ggml_attention.c"
    assert_numbers(judge(Candidate.of(path), "attention", "F32", secret=5, shrink=False))
