"""bench.gpu_check: what of it needs no GPU."""

import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from io import StringIO
from itertools import cycle, groupby, islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bench import gpu_check
from bench.child import Revived, started
from bench.cuda import cases as of_ops
from bench.cuda import jobs, parts, sanitizer, sweep
from bench.cuda.clock import Ceilings
from bench.cuda.engine import compared
from bench.cuda.judged import cases, compile_all, each, program, random_cases
from bench.cuda.parts import Check, Log
from bench.cuda.sanitizer import Finding
from bench.race.results import Measurement, read
from bench.tests.support.programs import executable, run
from kernels.certificates import Certificate
from kernels.cuda.fusion.fusions import EVERY_CUDA
from kernels.cuda.runtime.device import DeviceError
from kernels.cuda.runtime.nvrtc import Compiled
from kernels.cuda.table import CUDA_KERNELS
from kernels.table import find_any
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
import bench.cuda.parts, bench.cuda.judged, bench.cuda.judged
from bench.machine.conditions import conditions
conditions()
print("all there")
"""


def test_no_gpu_is_one_line_and_nothing_else(tmp_path):
    words = ("-m", "bench.gpu_check", "-o", "out")
    done = run(tmp_path, *words, cwd=tmp_path, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("gpu-check: no ")
    assert not (tmp_path / "out").exists()


def test_what_it_cannot_do_without_is_named(monkeypatch, capsys):
    """Before anything else is imported; as is a model without a shape."""
    monkeypatch.setattr(gpu_check, "NEEDED", ("numpy", "no_such_package", "nor_this"))
    assert gpu_check.main([]) == 1
    told = "gpu-check: no GPU can be used without no_such_package and nor_this\n"
    assert capsys.readouterr().err == told
    with pytest.raises(SystemExit, match="2"):
        gpu_check.main(["--model", "file.gguf"])
    assert "--model is SHAPE=FILE, got 'file.gguf'" in capsys.readouterr().err


def test_a_bare_machine_can_import_all_of_it(tmp_path):
    """With no more than NumPy, Numba and CuPy, and those three's own needs."""
    done = run(tmp_path, "-c", BARE, " ".join(ABSENT))
    assert done.stdout == "all there\n", done.stderr


def checked(folder, seconds=60):
    gpu = SimpleNamespace(memory=lambda: (1, 1), identity="made up", library="")
    return Check(gpu, folder, Log(StringIO(), time.monotonic()), seconds)


def certificate(kernel, failure=""):
    return Certificate(kernel.name, "0" * 64, "quick", 3, 0.5, 0.0, 1.0, "2026-11-23", failure)


def test_registers_and_spills_are_in_the_log(monkeypatch, tmp_path, capsys):
    """Of all that is compiled, in its file; on the terminal what spills."""
    check, kernels = checked(tmp_path), CUDA_KERNELS[:3]
    spills = {kernels[1].launches[0].digest: 8}

    def resources(launch, capability):
        return Compiled(b"", 40, spills.get(launch.digest, 0), 16)

    monkeypatch.setattr(parts.nvrtc, "resources", resources)
    parts.tell_resources(check, kernels, 90)
    written, said = check.say.file.getvalue().splitlines(), capsys.readouterr().out.splitlines()
    assert len(written) == 4
    assert "40 registers, 8 bytes spilled, 16 bytes shared" in written[1]
    assert len(said) == 1
    assert f"{kernels[1].launches[0].name} spills" in said[0]


def test_what_is_here_is_said_first(monkeypatch, tmp_path, capsys):
    """Versions and tools, without importing any; then what is not here."""
    monkeypatch.setattr(parts, "PACKAGES", ("numpy", "no-such-package"))
    check = checked(tmp_path)
    parts.introduce(check)
    told = capsys.readouterr().out
    assert f"numpy {np.__version__}" in told
    assert "no-such-package, " in told.splitlines()[-1]
    assert "cuBLAS" in told.splitlines()[-1]


@pytest.mark.parametrize("breaks", [False, True])
def test_what_fails_is_said_and_left_out(monkeypatch, tmp_path, breaks):
    """Be it in compiling or before the judge, also if judging breaks off; what there was no time
    for is neither."""
    kernels = list(CUDA_KERNELS[:5])
    check = checked(tmp_path)
    check.gpu = SimpleNamespace(capability=90, library="")
    told = {kernels[0].name: "no such word"}, [kernels[1].name]
    monkeypatch.setattr(parts, "runnable", lambda _: kernels)
    monkeypatch.setattr(parts, "compile_all", lambda *_: told)

    def judged(tried, store, seconds, until, tell):
        assert tried == kernels[1:]
        tell(certificate(kernels[2]))
        tell(certificate(kernels[3], "out[0] is 1, expected 2"))
        if breaks:
            raise OSError("no space left")

    monkeypatch.setattr(parts, "judge_all", judged)
    parts.compile_kernels(check)
    assert check.broken == {kernels[0].name}
    with pytest.raises(OSError, match="no space") if breaks else nullcontext():
        parts.judge(check)
    assert check.broken == {kernels[0].name, kernels[3].name}
    assert check.failures == [
        f"{kernels[0].name}: no such word",
        f"{kernels[3].name}: out[0] is 1, expected 2",
    ]
    assert check.missed == [
        "kernels that need cuBLAS, which is not here",
        "compiling 1 kernels ahead, not reached in time",
        "the judge on 2 kernels, not reached in time",
    ]


def test_what_waits_is_not_begun_after_one_broke_off():
    begun = []

    def work(number):
        begun.append(number)
        time.sleep(0.01)
        if number == 3:
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        each(work, range(1000), 2, time.monotonic() + 60)
    assert 3 in begun
    assert len(begun) < 1000


def test_what_breaks_off_is_a_failure_and_the_rest_goes_on(monkeypatch, tmp_path, capsys):
    done = []

    def breaks(check, **_):
        raise RuntimeError("the device is lost\nmore words")

    monkeypatch.setattr(parts, "lacking", lambda _: ["gguf"])
    for name in ("compile_kernels", "judge"):
        monkeypatch.setattr(parts, name, breaks)
    monkeypatch.setattr(parts.Measured, "aim", lambda _, check: breaks(check))
    monkeypatch.setattr(parts, "sanitize", done.append)
    check = checked(tmp_path)
    parts.run(check, {"a": Path("b")})
    assert done == [check]
    assert check.failures == [
        f"{part} broke off: RuntimeError: the device is lost"
        for part in ("compiling", "ceilings, and what goals are of", "judging")
    ]
    said = capsys.readouterr().out
    assert check.say.file.getvalue() == said
    assert said.count("FAILED") == 3
    assert "made up, 0.0 of 0.0 GiB free" in said
    engine, rest, _, goals = check.missed
    assert (engine, rest) == ("the engine, without gguf", "measuring without ceilings")
    assert goals == "goals without ceilings"
    assert said.index("NOT RUN: the engine") > said.index("FAILED")


CHILD = """
import os, time

def told(asked):
    what = os.environ.get(asked)
    if what == "hangs":
        time.sleep(60)
    if what == "dies":
        os._exit(3)
    if what == "raises":
        raise RuntimeError("an illegal address")
    return what

def complaints(kernels, capability):
    return {kernels[0]: "no such word"} if told(kernels[0]) == "one" else {}

class Worker:
    def probe(self):
        from bench.cuda.clock import Ceilings
        return Ceilings("made up", bandwidth=1e12, reading=1e12, peak=0, launch=1e-6, cache=1)

    def measure(self, number, out, **_):
        from bench.race.results import Measurement
        what, note = told(f"job {number}"), " ".join([str(os.getpid()), *out])
        row = Measurement("gpu", f"job {number}", samples=(1.0,), note=note)
        return [row], what == "loses"
"""


@pytest.fixture(name="child")
def _child(tmp_path, monkeypatch):
    """A module for a child that does as the environment says of a question."""
    (tmp_path / "obedient.py").write_text(CHILD)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "obedient"


def programs():
    """Names of some kernels, those of one source and definitions together."""
    ops = ("linear", "rms_norm", "softmax", "attention", "attention_round")
    some = sorted((k for k in EVERY_CUDA if k.op in ops), key=program)
    return [[kernel.name for kernel in own] for _, own in groupby(some, program)]


def test_a_compiler_that_hangs_costs_only_what_it_compiles(child, monkeypatch):
    together = programs()[:12]
    kernels = [find_any(name) for names in together for name in names]
    for number, what in {0: "hangs", 2: "dies", 4: "raises"}.items():
        monkeypatch.setenv(together[number][0], what)
    alone = next(names for names in together[1::2] if len(names) > 1)
    monkeypatch.setenv(alone[0], "one")
    soon = time.monotonic() + 300
    told, unreached = compile_all(
        kernels, 90, workers=3, until=soon, patience=10, home=f"{child}:complaints"
    )
    assert unreached == []
    assert told == {
        **dict.fromkeys(together[0], "no answer within 10 s"),
        **dict.fromkeys(together[2], "it ended with status 3"),
        **dict.fromkeys(together[4], "an illegal address"),
        alone[0]: "no such word",
    }


@pytest.mark.parametrize("seconds", [0, 0.05])
def test_what_is_not_compiled_in_time_did_not_fail(child, monkeypatch, seconds):
    """Be it under way at that moment, or waiting."""
    kernels = [find_any(names[0]) for names in programs()]
    for kernel in kernels:
        monkeypatch.setenv(kernel.name, "hangs")
    home = f"{child}:complaints"
    soon = time.monotonic() + seconds
    told, unreached = compile_all(kernels, 90, workers=2, until=soon, home=home)
    assert told == {}
    assert sorted(unreached) == sorted(kernel.name for kernel in kernels)


def test_a_job_that_takes_its_process_down_costs_only_itself(child, monkeypatch):
    """A hanging one too; after an error nobody relies on the GPU's context, nor after one that has
    lost it, whose own rows count."""
    monkeypatch.setattr(jobs, "LEAST", 10.0)
    for number, what in enumerate(("", "hangs", "dies", "raises", "loses", "", "")):
        monkeypatch.setenv(f"job {number}", what)
    with Revived(f"{child}:Worker") as revived:
        measuring = jobs.Measuring(revived, {}, ["a/b"])
        ceilings = measuring.probe(30)
        assert ceilings.peak == 0
        rows = [row for number in range(7) for row in measuring.rows(number, ceilings, 0)]
    assert [bool(row.samples) for row in rows] == [True, *[False] * 3, True, True, True]
    assert [row.note for row in rows[1:4]] == [
        "no answer within 10 s", "it ended with status 3", "an illegal address"
    ]  # fmt: skip
    assert [replace(row, note="") for row in rows[1:4]] == [job.row for job in measuring.jobs[1:4]]
    first, *_, lost, before, last = (row.note for row in rows)  # of which process, without whom
    assert len({first, lost, last}) == 3
    assert before == last
    assert last.endswith(" a/b"), "kernels that failed are left out"


def test_what_is_measured_is_written_and_told(child, monkeypatch, tmp_path, capsys):
    """And what is left when the time is up is said to be."""
    monkeypatch.setattr(jobs, "HOME", f"{child}:Worker")
    monkeypatch.setenv("job 1", "raises")
    check = checked(tmp_path)
    check.broken.add("linear/cuda/broken/F16")
    measured = parts.Measured({})
    measured.aim(check)
    aimed = len(check.rows)
    assert aimed == len(jobs.jobs_of_goals())
    measured.rest(check)
    assert len(check.rows) > aimed + 10
    assert check.failures == [f"{check.rows[1].title}: an illegal address"]
    (path,) = (tmp_path / "results").iterdir()
    assert read(path).measurements == tuple(check.rows)
    assert check.rows[0].note.endswith(" linear/cuda/broken/F16")
    assert "the matmul peak: " in check.missed[0]
    late = checked(tmp_path, seconds=0)
    measured = parts.Measured({})
    measured.aim(late)
    measured.rest(late)
    assert late.missed[1:] == [f"{len(check.rows)} measurements, not reached in time"]
    assert "not run: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("program", "says", "failures"),
    [
        ("print('fine')", "fine", []),
        ("print('off'); raise SystemExit(1)", "off", ["the engine: logits are too far apart"]),
        ("raise OSError('no such model')", "", ["the engine: OSError: no such model"]),
        (
            "import time; time.sleep(60)",
            "not run: the engine on further models, not reached in time",
            [],
        ),
    ],
)
def test_the_engine_is_compared_beside_the_others(tmp_path, capsys, program, says, failures):
    """What the process says is said, and why it failed; it may not take longer than there is."""
    check = checked(tmp_path, seconds=0 if "sleep" in program else 60)
    with parts.Comparison() as comparison:
        comparison.process = comparison.enter_context(started([sys.executable, "-c", program]))
        comparison.end(check)
    assert says in capsys.readouterr().out
    assert check.failures == failures


def test_logits_may_differ_by_a_rounding():
    cpu = np.float64([[1, 8, 3], [2, 0, -4]])
    told = "m: logits differ by 0.1 at most, of 8; 0 of 2 tokens have another likeliest one"
    assert compared("m", cpu, cpu + 0.1) == (told, True)
    line, fine = compared("m", cpu, cpu * [[1, 0, 1]])
    assert not fine
    assert "1 of 2 tokens" in line
    assert not compared("m", cpu, cpu * np.nan)[1]


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
    assert watched == {launch.source for kernel in EVERY_CUDA for launch in kernel.launches}


@pytest.mark.parametrize(
    ("script", "seconds", "finding"),
    [
        ("exit 0", 30, Finding("nothing found")),
        ("echo '=== Invalid read'; exit 86", 30, Finding("status 86: Invalid read", fault=True)),
        ("echo broken >&2; exit 1", 30, Finding("status 1: broken", fault=True)),
        (
            "echo Device not supported; exit 1",
            30,
            Finding("status 1: Device not supported", missed=True),
        ),
        ("exec sleep 30", 1, Finding("not done within 1 s", missed=True)),
    ],
)
def test_what_the_sanitizer_finds_is_said(tmp_path, script, seconds, finding):
    program = executable(tmp_path / "compute-sanitizer", f"#!/bin/sh\n{script}\n")
    assert sanitizer.watched(program, "memcheck", seconds) == finding


class Given:
    """What sweep's kernels run on: a choice of ROWS_OF_1 = 4 has other bits, of 1 does not run."""

    def __init__(self, *_, out=1.0):
        self.out = out

    def running(self, kernel):
        rows = kernel.launches[0].config["ROWS_OF_1"]
        if rows == 1:
            raise DeviceError("too much shared memory")
        return Given(out=2.0 if rows == 4 else 1.0)

    def enqueue(self, i):
        """Takes no time."""

    def outputs(self):
        return {"out": np.array([self.out])}


def test_knobs_are_swept_in_turns_with_the_defaults(monkeypatch):
    """Each value that shows at so many tokens; one with other bits, or that does not run, has no
    speed."""
    kernel = find_any("linear/cuda/generic/F16")
    case = of_ops.linear("GEMV", "F16", 1, 64, 32)
    known = {"Bound": Given, "kernels_for": lambda *_: [kernel], "check": lambda *_: ""}
    for name, value in known.items():
        monkeypatch.setattr(sweep, name, value)
    times = cycle((3e-3, 2e-3))
    clock = SimpleNamespace(wake=lambda: None, repeats=lambda _: 1, seconds=lambda *_: next(times))
    limits = Ceilings("made up", bandwidth=1e12, reading=1e12, peak=0, launch=1e-6, cache=1)
    rows = sweep.sweep(None, clock, limits, case, ())
    told = {row.settings: row.note for row in rows}
    shown = {f"{k.name}={value}" for k in kernel.knobs if 1 in k.tokens for value in k.others}
    assert told.keys() == {"", *shown}
    assert told["ROWS_OF_1=4"] == "out has other bits"
    assert told["ROWS_OF_1=1"] == "too much shared memory"
    assert all(row.samples for row in rows if not row.settings.startswith("ROWS_OF_1"))


def test_gains_of_knobs_are_over_all_sizes():
    rows = [
        Measurement(
            "gpu", "knobs of GEMV", target="cuda", format="F16", variant="generic", shape=size,
            settings=settings, samples=(seconds,),
        )
        for size, settings, seconds in (
            ("hidden=1", "", 2.0), ("hidden=1", "A=1", 1.0), ("hidden=1", "A=2", 1.0),
            ("hidden=2", "", 2.0), ("hidden=2", "A=1", 1.0), ("hidden=2", "A=2", 2.5),
        )
    ]  # fmt: skip
    name = "knobs of GEMV/cuda/generic/F16"
    assert list(sweep.gains(rows)) == [
        f"{name} A=1: 2.000 [2.000, 2.000] of 2: choose it",
        f"{name} A=2: 1.265 [0.800, 2.000] of 2",
    ]
