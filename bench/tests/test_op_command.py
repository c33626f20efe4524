"""`assay op`: one op alone, judged and timed, through the program itself."""

import json
import sys

import numpy as np
import pytest

import bench.ops.op_run
import bench.ops.single_op
import kernels.table
from bench.machine.limits import Cache
from bench.ops.cases import CACHES
from bench.ops.op_run import Lab, OpRun
from bench.ops.workload import Workload
from bench.shell.op import serving
from bench.tests.support.synthetic import ENDLESS, machine_of
from engine.shell import main
from kernels.cpu.runtime.team import Team
from kernels.cuda.runtime import sass
from kernels.kernel import Kernel
from kernels.table import KERNELS, find, variants
from reference.table import OPS

KEYS = {
    "kernel", "shape", "values", "seed", "threads", "passed", "error_over_bound", "nmse",
    "seconds", "samples", "gb_per_second", "gflop_per_second", "limit", "share", "note",
    "cold_seconds", "cold_samples", "cold_gb_per_second", "cold_gflop_per_second", "cold_limit",
    "cold_share", "cold_note",
}  # fmt: skip
NORM = "rms_norm", "--shape", "tokens=3,hidden=256"
FIRST = [next(k for k in KERNELS if k.op == op and not k.missing()) for op in OPS]


def one_cache(bytes_per_second):
    """One cache and a memory, a tenth as fast; arithmetic that never binds."""
    rates = {1 << 14: bytes_per_second, 1 << 26: bytes_per_second / 10}
    return machine_of(rates, ENDLESS, 0.1, [Cache("L1d", 1 << 15, 1)], [1])


@pytest.fixture
def probes(monkeypatch):
    """Each time that limits were asked for, whether anew; a fast machine stands in for this one."""
    asked = []

    def limits(threads, progress=None, again=False, moved=()):
        asked.append(again)
        return one_cache(1e13)

    monkeypatch.setattr(bench.ops.op_run, "limits", limits)
    return asked


@pytest.fixture
def assay(monkeypatch, capfd, probes):
    """Exit code, stdout and stderr of `assay op` on one thread."""
    monkeypatch.setattr(bench.ops.single_op, "RACE_SECONDS", 0.1)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["assay", "op", *words, "-t", "1"])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code or 0, *capfd.readouterr())

    return run


def rows_of(outcome):
    code, stdout, stderr = outcome
    assert (code, stderr) == (0, "")
    return json.loads(stdout)


def test_json_has_every_figure_of_every_variant(assay, probes):
    """A row a variant: its error, and on hot and cold caches its time; bytes and operations over
    seconds give the rates, and a share is the rate over the limit's."""
    rows = rows_of(assay(*NORM, "--all", "--values", "spiky", "--seed", "3", "--json"))
    cost = OPS["rms_norm"].cost({"tokens": 3, "hidden": 256}, None)
    assert [row["kernel"] for row in rows] == ["rms_norm/cpu/generic", "rms_norm/cpu/scalar"]
    for row in rows:
        assert set(row) == KEYS
        assert (row["shape"], row["values"]) == ({"tokens": 3, "hidden": 256}, "spiky")
        assert (row["seed"], row["threads"], row["passed"]) == (3, 1, True)
        assert 0 <= row["error_over_bound"] <= 1
        assert (row["limit"], row["cold_limit"]) == ("L1d read", "memory read")
        for prefix, fastest in (("", 1e13), ("cold_", 1e12)):
            seconds, gb, gflop, share, note = (
                row[prefix + name]
                for name in ("seconds", "gb_per_second", "gflop_per_second", "share", "note")
            )
            assert row[f"{prefix}samples"] >= 5
            assert gb == pytest.approx(cost.bytes / seconds / 1e9)
            assert gflop == pytest.approx(cost.operations / seconds / 1e9)
            assert share == pytest.approx(cost.bytes / seconds / fastest)
            assert 0 < share <= 1.1
            assert note == ""
    assert probes == [False]


def test_what_an_engine_would_use_is_shown(assay):
    """Of each numerics the first kernel that runs here, or the one variant that was asked for."""
    for words, kernel in ((), "generic"), (("--variant", "scalar"), "scalar"):
        (row,) = rows_of(assay(*NORM, *words, "--json"))
        assert row["kernel"] == f"rms_norm/cpu/{kernel}"
    kernels = [k for k in variants("linear", "F16") if not k.missing()]
    exact = [k for k in kernels if k.numerics == "exact"]
    fast = [k for k in kernels if k.numerics == "fast"]
    assert serving(kernels) == [*fast[:1], exact[0]]


def test_the_table_fits_eighty_columns(assay, monkeypatch):
    """Title, header, and two lines a variant: what programs get, for people."""
    monkeypatch.setattr("engine.shell.terminal.PIPE_WIDTH", 80)
    words = "linear", "--all", "--format", "Q4_0", "--shape", "tokens=1,hidden=256,out=64"
    code, stdout, _ = assay(*words)
    lines = stdout.splitlines()
    assert code == 0
    title = "linear Q4_0 tokens=1,hidden=256,out=64: normal values, seed 0, 1 thread"
    assert lines[0] == title
    assert all(len(line) <= 80 for line in lines)
    usable = [k for k in KERNELS if (k.op, k.format) == ("linear", "Q4_0") and not k.missing()]
    body = lines[2 : 2 + 2 * len(usable)]
    assert [line.split()[0] for line in body[::2]] == [k.variant for k in usable]
    assert all("hot" in line for line in body[::2])
    assert all(line.startswith(" ") and "cold" in line for line in body[1::2])
    assert all("%" in line and "read" in line for line in body)


def test_faster_than_the_machine_is_rejected(assay, monkeypatch):
    """A share above the limit makes the machine be probed once again, and then is marked."""
    asked = []

    def slow(threads, progress=None, again=False, moved=()):
        asked.append(again)
        return one_cache(1e3)

    monkeypatch.setattr(bench.ops.op_run, "limits", slow)
    row = rows_of(assay(*NORM, "--variant", "generic", "--json"))[0]
    assert asked == [False, True]
    assert row["share"] > 1.1
    assert "its cost or the clock is wrong" in row["note"]
    told = assay(*NORM, "--variant", "generic")[1]
    assert "%! L1d read" in told
    assert "! generic, hot: " in told


def test_a_wrong_kernel_fails_in_one_line(assay, monkeypatch, probes):
    """It is named on stderr with what it got wrong, exit 1; right ones are timed, and where there
    is none the machine is not probed."""
    wrong = Kernel("silu", "planted", find("relu/cpu/generic").share)
    monkeypatch.setattr(kernels.table, "variants", lambda *_: [wrong, find("silu/cpu/generic")])
    code, stdout, stderr = assay("silu", "--all", "--shape", "tokens=2,width=32", "--json")
    bad, good = json.loads(stdout)
    assert code == 1
    assert (bad["passed"], good["passed"]) == (False, True)
    assert "seconds" not in bad
    assert good["seconds"] > 0
    assert stderr.startswith("assay: silu/cpu/planted: out[")
    assert stderr.count("\n") == 1
    assert "FAILED" in assay("silu", "--shape", "tokens=2,width=32")[1]
    probes.clear()
    monkeypatch.setattr(kernels.table, "variants", lambda *_: [wrong])
    assert assay("silu", "--shape", "tokens=2,width=32")[0] == 1
    assert probes == []


def test_what_takes_too_much_is_left_out_with_a_note(assay, monkeypatch):
    """A time that the lab refuses is null, and the note says why; that is no failure."""
    monkeypatch.setattr(
        bench.ops.single_op, "MOST_SECONDS", 0.0
    )  # the first call is too long already
    words = ("rms_norm", "--shape", "tokens=64,hidden=1024", "--variant", "generic")
    row = rows_of(assay(*words, "--json"))[0]
    times = {"hot": row["seconds"], "cold": row["cold_seconds"]}
    assert sorted(map(bool, times.values())) == [False, True]
    assert "over the cap" in row["note"] + row["cold_note"]
    assert "not timed: generic, " in assay(*words)[1]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["levitate"], 2, "there is no op 'levitate'"),
        (["silu", "--format", "Q4_0"], 2, "silu takes no format, got Q4_0"),
        (["silu", "--seed", "-1"], 2, "--seed must not be negative, got -1"),
        (["silu", "--machine-code", "--sm", "60"], 2, "--sm is at least 75, got 60"),
        (["silu", "--variant", "fast"], 2, "no kernel of silu serves here: no variant 'fast'"),
        (["silu", "--shape", "tokens=x"], 2, "--shape wants axis=size"),
        (["silu", "--shape", "tokens=9999999999"], 2, "--shape: tokens=9999999999 is too large"),
    ],
)
def test_bad_input_is_one_line(assay, probes, words, code, message):
    """What cannot be done is named before anything is probed or timed."""
    got, stdout, stderr = assay(*words)
    assert (got, stdout, probes) == (code, "", [])
    assert message in stderr.splitlines()[-1]


@pytest.mark.skipif(bool(sass.missing()), reason=sass.missing())
def test_machine_code_is_told_without_a_gpu(assay):
    """Of an op's CUDA kernels: registers, loads by their bytes, products of tensor cores."""
    words = "quantise_activations", "--machine-code", "--sm", "80"
    (row,) = rows_of(assay(*words, "--json"))
    assert row["kernel"] == "quantise_activations/cuda/generic"
    assert 0 < row["registers"] < 65
    assert (row["spilled"], row["copies_of_loads"], row["instructions_a_product"]) == (0, 0, None)
    assert "registers" in assay(*words)[1]


@pytest.mark.parametrize("tried", FIRST, ids=lambda kernel: kernel.op)
def test_whatever_is_judged_can_be_timed(tried):
    """The cases of the trial run as timed ones, and their outputs are right while they do."""
    cases = [c for c in tried.spec.quick_cases(tried.format, 4) if tried.takes(c.shape)]
    with Team(1) as team:
        lab = Lab(team, one_cache(1e13))
        for case in cases:
            for cache in CACHES:
                run = OpRun(lab, Workload.on(tried, case), cache)
                assert run() >= 0
                assert run.checked == 1


def test_timing_has_the_values_that_were_asked_for():
    """Inputs of another kind or seed are other inputs, the same ones each time."""
    kernel = find("rms_norm/cpu/generic")
    x = [
        Workload.on(kernel, kernel.spec.case({"tokens": 2, "hidden": 64}, *asked)).inputs()["x"]
        for asked in (("normal", 0), ("spiky", 0), ("spiky", 1), ("spiky", 1))
    ]
    assert not np.array_equal(x[0], x[1])
    assert not np.array_equal(x[1], x[2])
    assert np.array_equal(x[2], x[3])


def test_attention_costs_the_cells_that_its_tokens_see():
    """A window makes the work less; a plain sequence is as benchmarks have it."""
    kernel = find("attention/cpu/generic/F32")
    sizes = {"tokens": 4, "heads": 4, "kv_heads": 2, "head_dim": 16, "capacity": 130}
    plain = {"sequences": 1, "windowed": 0, "alibi": 0, "softcapped": 0}

    def work(**changes):
        return Workload.on(kernel, kernel.spec.case(sizes | plain | changes, format="F32"))

    for special in (work(windowed=1), work(sequences=3)):
        spans = special.inputs()["spans"]
        cells = int((spans[:, 2] - spans[:, 1]).sum())
        assert special.cost.operations == pytest.approx(4 * 4 * 16 * cells)
    whole = 4 * 4 * 4 * 16 * (130 - 1.5)  # four tokens at the end: the first sees three cells less
    assert work().cost.operations == pytest.approx(whole)
