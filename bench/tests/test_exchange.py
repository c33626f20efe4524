"""Exchange with flashinfer-bench: what is read and written, held against the package itself."""

import json
import math

import numpy as np
import pytest

pytest.importorskip("flashinfer_bench", reason="pip install 'assay[exchange]'")

from flashinfer_bench.data import TraceSet

from bench.exchange.dataset import Dataset, ExchangeError
from bench.exchange.evaluate import Evaluated, evaluate, judged, sol_score
from bench.exchange.ops import NOT_DERIVED, op_of
from bench.machine.limits import Limits, Rate
from bench.race.experiment import Rule
from bench.tests.support.exchange_files import rows_of_table, solution, write
from kernels.foreign.child import Limits as ChildLimits

HERE = Limits((), (Rate("read", 1, 1e12, 0.0, 2**30),), "2026-01-01")  # as fast as no machine
BRIEFLY = Rule(least=2, cap_seconds=0.1, most=3)
STATUSES = {
    "into": "PASSED",
    "product": "PASSED",
    "forgets-weight": "INCORRECT_NUMERICAL",
    "nan": "INCORRECT_NUMERICAL",
    "few-rows": "INCORRECT_SHAPE",
    "float": "INCORRECT_DTYPE",
    "raises": "RUNTIME_ERROR",
    "no-import": "COMPILE_ERROR",
}


def test_a_solution_alone_is_judged(tmp_path):
    """By its file: the right one passes, and what tries a wrong one again is its file, too."""
    root = write(tmp_path / "set")
    assert judged(root / "solutions/into.json", "quick", ChildLimits()).passed
    report = judged(root / "solutions/forgets-weight.json", "quick", ChildLimits())
    assert report.verdict == "wrong"
    assert report.replay.startswith(f"assay judge {root}/solutions/forgets-weight.json --shape")
    alone = tmp_path / "alone.json"
    (root / "solutions/into.json").rename(alone)
    with pytest.raises(ExchangeError, match="no folder above it has definitions/"):
        judged(alone, "quick", ChildLimits())


def test_solutions_are_told_apart_and_traces_are_read_by_their_package(tmp_path):
    """A status for each way to be right or wrong; the definition's bound is told not to be derived;
    their TraceSet reads what is written, and finds the best."""
    dataset = Dataset(write(tmp_path))
    chosen = [s for s in dataset.solutions if s.name in STATUSES]
    found = list(evaluate(dataset, chosen, HERE, rule=BRIEFLY))
    assert all(isinstance(one, Evaluated) for one in found)
    said = {one.solution.name: {t.evaluation.status for t in one.traces} for one in found}
    assert said == {name: {status} for name, status in STATUSES.items()}
    assert all(NOT_DERIVED in one.report.notes for one in found)
    traces = [trace for one in found for trace in one.traces]
    dataset.add(traces)
    assert sorted(map(repr, dataset.traces())) == sorted(map(repr, traces))
    read = TraceSet.from_path(str(tmp_path))
    passed = [t for some in read.traces.values() for t in some if t.evaluation.performance]
    assert sum(map(len, read.traces.values())) == len(traces)
    assert {t.solution for t in passed} == {"into", "product"}
    assert all(0 < t.evaluation.correctness.extra["sol_score"] < 1 for t in passed)
    assert read.get_best_trace("norm_h64").solution == "into"
    worst = {t.solution: t.evaluation.correctness for t in read.traces["norm_h64"]}
    assert math.isnan(worst["nan"].max_absolute_error)
    assert worst["forgets-weight"].max_absolute_error > 0.1


def test_indices_are_those_of_the_workloads_file(tmp_path):
    """Integers mean something: they come from safetensors, at the workload's sizes alone."""
    dataset = Dataset(rows_of_table(tmp_path))
    right, clipped = dataset.solutions
    first, second = evaluate(dataset, [right, clipped], HERE, rule=BRIEFLY)
    assert first.report.verdict == "passed"
    assert first.report.cases > 1
    assert second.report.verdict == "wrong"
    definition = dataset.definitions["rows"]
    op = op_of(definition, dataset.workloads("rows"), dataset.root)
    assert {op.case({"n": n}).shape["n"] for n in (1, 3, 1000)} == {5}
    table = op.make(op.case({}))["indices"]
    np.testing.assert_array_equal(table, [0, 99, 7, 7, 41])


def test_what_cannot_be_judged_here_does_not_end_the_others(tmp_path):
    """A language without an interpreter here, and a reference that fails."""
    path = write(tmp_path) / "definitions/gemm/gemm.json"
    broken = json.loads(path.read_text()) | {"reference": "def run(a, b):\n    return a.nothing\n"}
    path.write_text(json.dumps(broken))
    said = solution("into", language="cuda") | {"name": "compiled"}
    (tmp_path / "solutions/compiled.json").write_text(json.dumps(said))
    dataset = Dataset(tmp_path)
    chosen = [s for s in dataset.solutions if s.name in ("compiled", "product", "raises")]
    first, second, third = evaluate(dataset, chosen, HERE, rule=BRIEFLY)
    assert str(first) == "solution compiled: cuda is not run here, python, triton are"
    assert str(second).startswith("the reference of gemm: AttributeError: 'Tensor' object has no")
    assert isinstance(third, Evaluated)


@pytest.mark.parametrize(
    ("line", "words"),
    [("{", "Invalid JSON"), ('{"definition": "gemm"}', "workload: Field required"),
     ('{"definition": 3}', "definition: Input should be a valid string")],
)  # fmt: skip
def test_a_damaged_line_is_named(tmp_path, line, words):
    """By its file, its number and the place in it; a folder that is no dataset by its name."""
    path = write(tmp_path) / "workloads/gemm/gemm.jsonl"
    path.write_text(f"{path.read_text()}{line}\n")
    with pytest.raises(ExchangeError, match=rf"\A{path}:2: {words}.*\Z"):
        Dataset(tmp_path).workloads("gemm")
    with pytest.raises(ExchangeError, match="has no folder definitions"):
        Dataset(tmp_path / "workloads")


def test_a_score_is_a_half_at_the_base_and_1_at_the_limit():
    """1 / (1 + (t - t_sol) / (t_base - t_sol))."""
    assert sol_score(1.0, base=3.0, light=1.0) == 1
    assert sol_score(3.0, base=3.0, light=1.0) == 0.5
    assert sol_score(5.0, base=3.0, light=1.0) == pytest.approx(1 / 3)
    assert sol_score(0.9, base=1.0, light=1.0) == 1
    assert sol_score(1.1, base=1.0, light=1.0) == 0


def test_a_definitions_op_has_its_workloads_among_the_cases(tmp_path):
    """And other sizes, where inputs are random floats and nothing constrains them."""
    dataset = Dataset(write(tmp_path))
    for name, anywhere in (("norm_h64", True), ("gemm", False)):
        workloads = dataset.workloads(name)
        op = op_of(dataset.definitions[name], workloads, tmp_path)
        asked = {tuple(w.axes.values()) for w in workloads}
        seen = {tuple(c.shape[a] for a in workloads[0].axes) for c in op.quick_cases(None, 12, 1)}
        assert asked <= seen
        assert bool(seen - asked) == anywhere
