"""bench.gpu_check: what of it needs no GPU."""

import os
import subprocess
import sys
from io import StringIO
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bench import gpu_check
from bench.cuda import parts, sanitizer
from bench.cuda.check import Check, Log
from bench.cuda.trial import cases, random_cases
from kernels.cuda.table import CUDA_KERNELS
from reference.table import OPS

# What a bare machine with a GPU may lack.
ABSENT = (
    "hypothesis", "typer", "rich", "gguf", "tokenizers", "sentencepiece", "safetensors", "jinja2",
    "platformdirs", "psutil", "scipy", "matplotlib", "pandas", "pytest", "torch", "triton",
)  # fmt: skip
BARE = """
import sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in sys.argv[1].split():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Nothing())
import bench.cuda.parts, bench.cuda.trial, bench.cuda.judged
from bench.conditions import conditions
conditions()
print("all there")
"""


def without_gpu(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-m", "bench.gpu_check", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_no_gpu_is_one_line_and_nothing_else(tmp_path):
    done = without_gpu("-o", "out", folder=tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("gpu-check: no ")
    assert not (tmp_path / "out").exists()


def test_what_it_cannot_do_without_is_named(monkeypatch, capsys):
    """Before anything else is imported."""
    monkeypatch.setattr(gpu_check, "NEEDED", ("numpy", "no_such_package", "nor_this"))
    assert gpu_check.main([]) == 1
    told = "gpu-check: no GPU can be used without no_such_package and nor_this\n"
    assert capsys.readouterr().err == told


def test_a_model_needs_a_shape(capsys):
    with pytest.raises(SystemExit, match="2"):
        gpu_check.main(["--model", "file.gguf"])
    assert "--model is SHAPE=FILE, got 'file.gguf'" in capsys.readouterr().err


def test_a_bare_machine_can_import_all_of_it():
    """With no more than NumPy, Numba and CuPy, and those three's own needs."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", BARE, " ".join(ABSENT)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "all there\n", done.stderr


def test_what_breaks_off_is_a_failure_and_the_rest_goes_on(monkeypatch, tmp_path, capsys):
    done = []

    def breaks(check):
        raise RuntimeError("the device is lost\nmore words")

    for name in ("judge", "compare_engine"):
        monkeypatch.setattr(parts, name, breaks)
    monkeypatch.setattr(parts, "sanitize", done.append)
    monkeypatch.setattr(parts, "measure_all", lambda check, models: done.append((check, models)))
    file = StringIO()
    check = Check(SimpleNamespace(memory=lambda: (1, 1), identity=""), tmp_path, Log(file), 60)
    parts.run(check, {"a": Path("b")})
    assert done == [check, (check, {"a": Path("b")})]
    assert check.failures == [
        f"{part} broke off: RuntimeError: the device is lost" for part in ("judging", "the engine")
    ]
    assert file.getvalue() == capsys.readouterr().out
    assert file.getvalue().count("FAILED") == 2


@pytest.mark.parametrize("name", ["linear", "attention", "sparse_axpy", "rms_norm"])
def test_random_cases_are_legal_and_the_same_again(name):
    op = OPS[name]
    kind = op.formats[0] if op.formats else None
    drawn, again = (
        list(islice(random_cases(op, kind, np.random.default_rng(1)), 30)) for _ in range(2)
    )
    assert drawn == again
    assert len({tuple(case.shape.items()) for case in drawn}) > 20
    for case in drawn:
        assert case == op.case(case.shape, case.values, case.seed, kind)


def test_quick_cases_come_first_however_long_they_take():
    kernel = next(k for k in CUDA_KERNELS if k.op == "rms_norm")
    quick = kernel.spec.quick_cases()
    assert list(cases(kernel, seconds=0)) == quick
    some = list(islice(cases(kernel, seconds=60), len(quick) + 3))
    assert some[: len(quick)] == quick


def test_the_sanitizer_watches_every_source():
    watched = {launch.source for kernel, _ in sanitizer.sample() for launch in kernel.launches}
    assert watched == {launch.source for kernel in CUDA_KERNELS for launch in kernel.launches}


@pytest.mark.parametrize(
    ("script", "fault", "words"),
    [
        ("exit 0", False, "nothing found"),
        ("echo '=== Invalid read'; exit 86", True, "status 86: Invalid read"),
        ("echo broken >&2; exit 1", True, "status 1: broken"),
        ("exec sleep 30", False, "not done within 1 s"),
    ],
)
def test_what_the_sanitizer_finds_is_said(tmp_path, script, fault, words):
    program = tmp_path / "compute-sanitizer"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    finding = sanitizer.watched(str(program), "memcheck", 1)
    assert finding.fault is fault
    assert finding.words == words
