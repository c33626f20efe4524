"""Verdicts of `assay judge` about kernels that are right, wrong, slow, greedy or broken."""

import json
import os
import py_compile
import shlex
import shutil
import socket
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from conformance.support.program import assay as program
from kernels.foreign.candidate import Candidate, CandidateError, compiled
from kernels.foreign.child import Limits
from kernels.foreign.judge import judge
from kernels.foreign.manifest import ManifestError
from kernels.foreign.report import Report
from kernels.foreign.samples import sampled
from reference.table import OPS

C = """
#include <math.h>
void rms_norm(const float *x, const float *weight, float eps, float *out, long tokens,
              long hidden) {
  for (long t = 0; t < tokens; t++) {
    double sum = 0;
    for (long i = 0; i < hidden; i++) sum += (double)x[t * hidden + i] * x[t * hidden + i];
    for (long i = 0; i < hidden; i++)
      out[t * hidden + i] = x[t * hidden + i] / sqrt(sum / hidden + eps) * weight[i];
  }
}
"""
NUMBA = """
import numpy as np
from numba import njit

@njit
def rms_norm(x, weight, eps, out):
    for t in range(x.shape[0]):
        mean = 0.0
        for i in range(x.shape[1]):
            mean += np.float64(x[t, i]) ** 2 / x.shape[1]
        for i in range(x.shape[1]):
            out[t, i] = x[t, i] / np.sqrt(mean + eps) * weight[i]
"""
TORCH = """
import torch

def rms_norm(x, weight, eps):
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)
"""
Q4_0 = """
// assay: op = "linear"
// assay: format = "Q4_0"
#include <stdint.h>
#include <string.h>
#if ASSAY_FORMAT != 2 /* GGUF's number of Q4_0 */
#error "the format is not told"
#endif
void linear(const float *x, const uint8_t *weight, float *out, int64_t tokens, int64_t hidden,
            int64_t n_out) {
  for (int64_t t = 0; t < tokens; t++)
    for (int64_t o = 0; o < n_out; o++) {
      const uint8_t *block = weight + o * (hidden / 32) * 18;
      double sum = 0;
      for (int64_t k = 0; k < hidden; k += 32, block += 18) {
        _Float16 scale;
        memcpy(&scale, block, 2);
        double part = 0;
        for (int j = 0; j < 16; j++)
          part += ((block[2 + j] & 15) - 8) * (double)x[t * hidden + k + j] +
                  ((block[2 + j] >> 4) - 8) * (double)x[t * hidden + k + j + 16];
        sum += (double)scale * part;
      }
      out[t * n_out + o] = sum;
    }
}
"""
NEEDS_TORCH = pytest.mark.skipif(
    find_spec("torch") is None, reason="torch is not installed: make test-transformers"
)
PLAIN = "def rms_norm(x, weight, eps, out):\n    "


def judged(folder: Path, text: str, suffix: str = ".py", **asked: object) -> Report:
    """The report on a file with this text; the data do not matter, so they are always the same."""
    path = folder / f"mine{suffix}"
    path.write_text(text)
    return judge(Candidate.of(path), "rms_norm", secret=7, **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "suffix", "right", "wrong"),
    [
        (C, ".c", "+ eps", ""),
        (C.replace("void", 'extern "C" void'), ".cpp", "* weight[i]", ""),
        (NUMBA, ".py", "+ eps", ""),
        pytest.param(TORCH, ".py", "weight, eps)\n", "weight, 1e-3)\n", marks=NEEDS_TORCH),
    ],
    ids=["c", "c++", "numba", "torch"],
)
def test_right_and_wrong_are_told_apart(
    tmp_path: Path, text: str, suffix: str, right: str, wrong: str
):
    """The right one passes; an edited one fails, with the element, its value and the bound."""
    report = judged(tmp_path, text, suffix)
    assert report.passed, report.reason
    assert 0 < report.worst < 1
    assert report.cases > 40
    mistaken = tmp_path / "mistaken"
    mistaken.mkdir()
    report = judged(mistaken, text.replace(right, wrong), suffix)
    assert report.verdict == "wrong"
    assert report.reason.startswith("out[")
    assert ", expected " in report.reason


def test_integer_overflow_is_a_wrong_number(tmp_path: Path):
    """An integer that overflows its output's type is a wrong number."""
    (tmp_path / "mine.py").write_text(
        "import numpy\n"
        "def right(logits): return numpy.array([numpy.argmax(logits)])\n"
        "def wrong(logits): return numpy.array([numpy.argmax(logits) + 2**32])\n"
    )
    assert judge(Candidate.of(f"{tmp_path}/mine.py:right"), "greedy").passed
    assert "beyond int32" in judge(Candidate.of(f"{tmp_path}/mine.py:wrong"), "greedy").reason


def test_page_faults_happen_before_timing(tmp_path: Path):
    """Page faults happen before timing, for every contender."""
    (tmp_path / "mine.py").write_text(
        "import numpy, resource\n"
        "def add(x, y, out):\n"
        "    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "    numpy.add(x, y, out=out)\n"
        "    waits = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before\n"
        "    assert waits < 100, waits\n"
    )
    candidate, shape = Candidate.of(tmp_path / "mine.py"), {"tokens": 512, "width": 1024}
    with sampled(candidate, OPS["add"], None, shape) as samples:
        assert samples() > 0


def test_a_quantised_product_is_judged(tmp_path: Path):
    """A product on Q4_0's bytes satisfies all laws; with a wrong zero it fails."""
    (tmp_path / "mine.c").write_text(Q4_0)
    report = judge(Candidate.of(tmp_path / "mine.c"), "linear", level="full")
    assert report.passed, report.reason
    assert {law.outcome for law in report.laws} == {"held"}
    (tmp_path / "wrong.c").write_text(Q4_0.replace(">> 4) - 8", ">> 4) - 7"))
    assert judge(Candidate.of(tmp_path / "wrong.c"), "linear").verdict == "wrong"


@pytest.mark.parametrize(
    ("body", "verdict", "reason"),
    [
        ("while True: pass", "hung", "the call took more than 0.5 s"),
        ("raise ArithmeticError('no')", "raised", "ArithmeticError: no (line 2"),
        ("import os; os.abort()", "crashed", "SIGABRT"),
        ("import os; os._exit(0)", "crashed", "ended the process with exit status 0"),
        ("import ctypes; ctypes.string_at(8)", "crashed", "SIGSEGV"),
        ("import numpy; numpy.ones(2**33, 'u1')", "raised", "MemoryError"),
        ("open('/tmp/escaped', 'w')", "raised", "PermissionError"),
        ("open(__file__, 'a')", "raised", "PermissionError"),
        ("open('/root/.bashrc')", "raised", "PermissionError"),
        ("f = open('big', 'wb'); f.truncate(2**30)", "", "File"),
        ("import os; os.system('true') and 1/0", "raised", "division by zero"),
        ("import kernels", "raised", "a candidate has no kernels"),
        ("x[0, 0] = 1", "crashed", "it wrote to its input x"),
        ("pass", "wrong", "out[0, 0] was not written; 3 of 3 were not"),
    ],
)
def test_misbehaving_kernels_get_a_verdict(tmp_path: Path, body: str, verdict: str, reason: str):
    """Hanging, raising, crashing, and too much memory or files are reported in a line."""
    limits = Limits(seconds=0.5, memory=2**30)
    report = judged(tmp_path, PLAIN + body, limits=limits, shrink=False)
    assert report.verdict == verdict or (not verdict and not report.passed)
    assert reason in report.reason
    assert "\n" not in report.reason
    assert not Path("/tmp/escaped").exists()


def test_there_is_no_network(tmp_path: Path):
    """A server on this machine cannot be reached."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        body = f"import socket; socket.create_connection(('127.0.0.1', {port}), 1)"
        report = judged(tmp_path, PLAIN + body, shrink=False)
    assert report.verdict == "raised"
    assert "Error" in report.reason


def test_sandbox_measures_are_listed(tmp_path: Path):
    """Each measure is listed by name, and why it could not be applied."""
    told = dict(judged(tmp_path, C, ".c").sandbox)
    assert {"no new privileges", "system calls (seccomp)", "no network (namespace)"} <= told.keys()
    assert told["no new privileges"] == ""


def test_compile_errors_are_reported(tmp_path: Path):
    """The report has the compiler's first error and its line."""
    report = judged(tmp_path, C.replace("double sum", "dooble sum"), ".c")
    assert report.verdict == "refused"
    assert "mine.c:6" in report.reason


@pytest.mark.parametrize(
    ("content", "suffix"),
    [
        (b"\xff\xfe", ".c"),
        (b'\xff extern "C" __global__ void rms_norm(float *out) {}', ".cu"),
        (b'extern "C" __global__ void rms_norm(float *out) { wrong; }', ".cu"),
        (b'# assay: takes = "min()"\n', ".py"),
    ],
)
def test_strange_files_are_refused_in_one_line(tmp_path: Path, content: bytes, suffix: str):
    """Bytes that are no text, compilers' messages of several lines, an expression of nothing."""
    path = tmp_path / f"mine{suffix}"
    path.write_bytes(content)
    report = judge(Candidate.of(path), "rms_norm")
    assert report.verdict == "refused"
    assert "\n" not in report.reason


def test_stale_bytecode_is_not_run(tmp_path: Path):
    """The source file runs, not its bytecode file, which Python accepts by size and date."""
    path, wrong = tmp_path / "mine.py", NUMBA.replace("+ eps", "- eps")
    path.write_text(NUMBA)
    py_compile.compile(str(path))
    second = path.stat().st_mtime
    path.write_text(wrong)
    os.utime(path, (second, second))
    assert judge(Candidate.of(path), "rms_norm", secret=7, shrink=False).verdict == "wrong"


@pytest.mark.parametrize(
    ("text", "suffix", "reason"),
    [
        (C.replace("eps", "epsilon"), ".c", "'epsilon' is none of x, weight, out, eps"),
        (C.replace("float *out", "double *out"), ".c", "out holds float, not double"),
        (PLAIN.replace("eps", "epsilon") + "pass", ".py", "'epsilon' is none of x, weight"),
        ("def norm(x): pass", ".py", "has no rms_norm; it has norm"),
        (PLAIN + "return 1 +", ".py", "SyntaxError"),
        (f'# assay: takes = "{"not " * 3000}tokens"\n{PLAIN}pass', ".py", "recursion"),
    ],
)
def test_invalid_signatures_are_refused(tmp_path: Path, text: str, suffix: str, reason: str):
    """Unknown parameters, other types, missing functions and other files are refused."""
    report = judged(tmp_path, text, suffix)
    assert report.verdict == "refused"
    assert reason in report.reason


def test_missing_and_unknown_files_are_refused(tmp_path: Path):
    """One line names a missing file, or the unknown kind of file."""
    with pytest.raises(CandidateError, match="there is no file"):
        Candidate.of(tmp_path / "none.c")
    (tmp_path / "mine.rs").write_text("")
    with pytest.raises(CandidateError, match="want one of"):
        Candidate.of(tmp_path / "mine.rs")
    (tmp_path / "mine.c").write_text("// assay: flags = [5]\n")
    with pytest.raises(ManifestError, match="flags is a list of words"):
        Candidate.of(tmp_path / "mine.c")


@NEEDS_TORCH
@pytest.mark.parametrize(("also", "reason"), [("pass", ""), ("x.zero_()", "wrote to its input x")])
def test_gpu_outputs_are_copied_back(tmp_path: Path, monkeypatch, also: str, reason: str):
    """Outputs are copied back, and modified inputs detected, with a copy on the CPU as the
    GPU's."""
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "torch.Tensor.cuda = torch.Tensor.clone\n"
        "def rms_norm(x, weight, eps, out):\n"
        "    out.copy_(torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps))\n"
        f"    {also}\n"
    )
    candidate = Candidate.of(tmp_path / "mine.py", arrays="triton", takes="tokens <= 8")
    report = judge(candidate, "rms_norm", secret=7, shrink=False)
    assert report.passed == (not reason), report.reason
    assert reason in report.reason


@NEEDS_TORCH
def test_declared_rounding_sets_the_bound(tmp_path: Path):
    """bfloat16 exceeds float32's bound but not its own."""
    text = TORCH.replace("weight, eps)\n", "weight, eps).bfloat16()\n")
    assert judged(tmp_path, text).verdict == "wrong"
    report = judged(tmp_path, text, numerics="bf16")
    assert report.passed, report.reason
    said = judged(tmp_path, '# assay: numerics = "bf16"\n' + text)
    assert said.passed, said.reason


def test_unsupported_sizes_are_left_out(tmp_path: Path):
    """A manifest lists the supported sizes, and only these are tried."""
    only = "\n    assert x.shape[1] % 64 == 0, x.shape"
    text = NUMBA.replace("eps, out):", "eps, out):" + only.replace(", x.shape", ""), 1)
    assert judged(tmp_path, text, shrink=False).verdict == "raised"
    report = judged(tmp_path, '# assay: takes = "hidden % 64 == 0"\n' + text)
    assert report.passed, report.reason
    assert report.notes == ("it was asked for such sizes alone: hidden % 64 == 0",)


def test_a_failure_is_shrunk_and_replayed(tmp_path: Path):
    """A bug of wide rows is shown at the smallest such width, by a command that works."""
    text = C.replace("i < hidden; i++) sum", "i < (hidden < 5 ? hidden : 5); i++) sum")
    report = judged(tmp_path, text, ".c")
    assert report.shrunk is not None
    assert dict(report.shrunk.case.shape) == {"tokens": 1, "hidden": 6}
    words = shlex.split(report.replay)
    assert words[:2] == ["assay", "judge"]
    code, stdout, stderr = program(*words[1:], "--json")
    assert code == 1, stderr
    told = json.loads(stdout)
    assert told["reason"] == report.reason
    assert told["cases"] == 1


def test_the_report_round_trips_through_json(tmp_path: Path):
    """Everything in it goes through JSON, an infinity as null."""
    report = judged(tmp_path, PLAIN + "pass")
    told = json.loads(json.dumps(report.json()))
    assert told["verdict"] == "wrong"
    assert told["worst"] is None
    assert told["shrunk"]["case"]["shape"] == {"tokens": 1, "hidden": 1}
    assert told["replay"] == report.replay
    assert {"measure", "held", "why"} == set(told["sandbox"][0])


def test_arrays_are_dlpack_arrays(tmp_path: Path):
    """A function without a signature may declare its parameters; results may be DLPack arrays."""
    text = (
        "import functools, numpy\n"
        "class Only:\n"
        "    def __init__(self, array): self.array = array\n"
        "    def __dlpack__(self, **asked): return self.array.__dlpack__(**asked)\n"
        "    def __dlpack_device__(self): return self.array.__dlpack_device__()\n"
        "def add(*arrays):\n"
        "    x, y = map(numpy.from_dlpack, map(Only, arrays))\n"
        "    return Only(x + y FACTOR)\n"
    )
    for factor, passes in (("", True), ("* 2", False)):
        path = tmp_path / "mine.py"
        path.write_text(text.replace("FACTOR", factor))
        candidate = Candidate.of(path, arguments=["x", "y"])
        report = judge(candidate, "add", secret=7, shrink=False)
        assert report.passed == passes, report.reason


def test_assumed_types_of_a_library_are_noted(tmp_path: Path):
    """A library has no types: a note lists the assumed ones, and a manifest may set others."""
    (tmp_path / "mine.c").write_text(C)
    library = tmp_path / "mine.so"
    shutil.copy(compiled(tmp_path / "mine.c", ("-O2",)), library)
    assert "eps:f64" in judge(Candidate.of(library), "rms_norm", shrink=False).notes[0]
    (tmp_path / "mine.toml").write_text(
        'arguments = ["x", "weight", "eps:f32", "out", "tokens", "hidden"]'
    )
    report = judge(Candidate.of(library), "rms_norm")
    assert report.passed, report.reason
    assert report.notes == ()


def test_a_function_of_this_process_is_judged():
    """A closure, too: `assay.judge(f, op=...)` makes a candidate of it."""
    factor = 1.0

    def norm(x, weight, eps):
        wide = x.astype(np.float64)
        mean = (wide**2).mean(-1, keepdims=True)
        return (factor * wide / np.sqrt(mean + eps) * weight).astype(np.float32)

    report = judge(Candidate.from_callable(norm), "rms_norm")
    assert report.passed, report.reason
    factor = 1.001
    assert not judge(Candidate.from_callable(norm), "rms_norm").passed
