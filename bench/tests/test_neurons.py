"""Neurons of sparse models: in a profile, where they are counted in a run of their own and their
bytes are those that a step really reads; and the curve of decode by their active share."""

import json
from functools import partial

import numpy as np
import pytest

import bench.machine.limits
from bench.engine.node_cost import cost_of
from bench.engine.profile import ProfileError, joined, neurons, profile, token_ids
from bench.race.experiment import ONCE, Rule
from bench.shell.profile import profile as command
from bench.sparse_speed import POWERINFER, Bytes, curve, section
from bench.tests.support.programs import executable
from bench.tests.support.programs import shell as shell_of
from bench.tests.support.small_sparse import FFN, HIDDEN, SHARE
from bench.tests.support.synthetic import QUICK, limits, rows_of
from engine import Engine
from engine.gguf.file import GGUFFile
from engine.passes.count import count_neurons, neuron_counts

counting = partial(Engine.load, context=32, passes=(count_neurons,))


@pytest.mark.parametrize("tokens", [1, 5])
def test_sparse_nodes_cost_what_they_read(sparse_model, tokens):
    """Rows of gate are those that were predicted, of up those whose gate is open, of down those
    that add something; a dense block's down passes over the others too."""
    with counting(sparse_model, threads=2, sparse="on") as engine:
        found = {n.shape: n for n in profile(engine, tokens, 3, rule=QUICK).nodes}
        ids = token_ids(engine, 3 + tokens)
        engine.model.evaluate(ids[:3], 0)
        for counted in neuron_counts(engine.model.memory).values():
            counted.clear()
        engine.model.evaluate(ids[3:], 3)
        steps = {s.node.label: s for s in engine.model.plan.steps}
        sizes = {"tokens": tokens, "outputs": 1}
        for block, counted in neuron_counts(engine.model.memory).items():
            for name, read in (
                ("ffn_gate", np.count_nonzero(counted.predicted)),
                ("ffn_up", np.count_nonzero(counted.hits)),
                ("ffn_down_t", np.count_nonzero(counted.hits)),
            ):
                cost = cost_of(steps[f"{block}.{name}"], sizes, 3, read)
                assert 0 < read < FFN
                assert found[f"{block}.{name}"].bytes == cost.bytes > 2 * HIDDEN * read
    with Engine.load(sparse_model, threads=2, context=32, sparse="off") as engine:
        found = {n.shape: n for n in profile(engine, 1, 3, rule=QUICK).nodes}
    rows = found["blk.0.ffn_down_t"].bytes / (2 * HIDDEN)
    assert FFN / 4 < rows < FFN * 3 / 4  # of a random gate, half is open


def test_neurons_of_a_profile(sparse_model):
    """The tokens of the step and those before it; what was counted before is no part."""
    with counting(sparse_model, threads=1, sparse="on") as engine:
        engine.model.evaluate(range(30), 0)
        blocks = neurons(engine, 5, 20)
        again = neurons(engine, 5, 20)
        assert list(blocks) == list(again) == ["blk.0", "blk.1"]
        for name, block in blocks.items():
            assert block.predicted.max() <= 25
            assert block.predicted.tolist() == again[name].predicted.tolist()
            assert (block.hits <= np.minimum(block.predicted, block.fired)).all()
            assert SHARE / 2 < block.active_share(25) < SHARE * 2
            assert not neuron_counts(engine.model.memory)[name].predicted.any()
        whole, halves = joined(blocks.values()), [b.active_share(25) for b in blocks.values()]
        assert whole.active_share(25) == pytest.approx(sum(halves) / 2)
        assert engine.model.cells.free == engine.model.cells.capacity
        with pytest.raises(ProfileError):
            neurons(engine, 5, 30)
    with counting(sparse_model, threads=1, sparse="off") as engine:
        assert neurons(engine, 5, 20) == {}


@pytest.fixture
def shell(sparse_model, monkeypatch):
    """Stdout and stderr of the command."""
    monkeypatch.setattr(bench.machine.limits, "limits", lambda *_, **__: limits())

    def run(*words):
        found = shell_of(command, str(sparse_model), "-t", "1", "-d", "8", *words)
        return found.stdout, found.stderr

    return run


def test_json_has_the_neurons(shell):
    """Of every sparse block; null where nothing was predicted; none of a model that runs dense."""
    told = json.loads(shell("--json", "--sparse", "on")[0])
    assert told["settings"].startswith("sparse=on,blocks=2/2,threshold=")
    assert [block["block"] for block in told["neurons"]] == ["blk.0", "blk.1"]
    for block in told["neurons"]:
        assert SHARE / 2 < block["active_share"] < SHARE * 2
        assert 0 < block["recall"] < 1
        assert 0 < block["precision"] < 1
    assert not any("count" in node["op"] for node in told["nodes"])  # timed without counting
    silence = ("--sparse", "on", "--sparse-threshold", "inf")
    silent = json.loads(shell("--json", *silence)[0])["neurons"]
    assert [(b["active_share"], b["recall"], b["precision"]) for b in silent] == [(0, 0, None)] * 2
    assert json.loads(shell("--json", "--sparse", "off")[0])["neurons"] == []


def test_the_table_of_neurons(shell):
    out, _ = shell("--sparse", "on")
    (line,) = [line for line in out.splitlines() if line.startswith("neurons, 9 random tokens")]
    assert line.split()[4:] == ["%", "active", "%", "recall", "%", "precision"]
    for name in ("blk.0", "blk.1", "all"):
        (row,) = [line.split() for line in out.splitlines() if line.split()[:1] == [name]]
        assert all(0 < float(share) < 100 for share in row[1:])
    assert "; sparse=on,blocks=2/2," in " ".join(out.split())
    assert "neurons" not in shell("--sparse", "off")[0]


def test_threshold_by_the_environment(shell, monkeypatch):
    """PowerInfer's variable; an option goes before it. Notes are told once, however many loads."""
    monkeypatch.setattr("engine.sparsity.SKIP_OVERHEAD", 0)
    monkeypatch.setenv("LLAMA_SPARSE_PRED_THRESHOLD", "-inf")
    out, err = shell("--json")
    assert json.loads(out)["neurons"] == []
    assert err.count("2 of 2 blocks run dense") == 1
    out, err = shell("--json", "--sparse-threshold", "inf")
    assert [block["active_share"] for block in json.loads(out)["neurons"]] == [0, 0]
    assert "dense" not in err


def test_bytes_are_those_of_the_tensors(sparse_model):
    """Each tensor that a step reads counts once; with all firing, predictors come on top."""
    with GGUFFile(sparse_model) as file:
        read = Bytes.of(file)
        total = sum(t.n_bytes for name, t in file.tensors.items() if "token_embd" not in name)
    assert read.dense + read.predictors == read.sparse(1, 1) == total
    assert read.sparse(0.1, 0.05) < read.sparse(0.2, 0.1) < read.sparse(1, 1)


PROGRAM = """#!/bin/sh
test "$LLAMA_SPARSE_PRED_THRESHOLD" || exit 1
echo "llama_print_timings:        eval time =     6.20 ms /    31 runs" >&2
"""


def test_points_have_the_shares_asked_for(sparse_model, tmp_path):
    """A curve of two points, its table and its drawing; PowerInfer's program is asked for each."""
    rule, told = Rule(least=3, most=3), list[str]()
    program = executable(tmp_path / "main", PROGRAM)
    curved = curve(sparse_model, sparse_model, (0.2, 0.6), 1, rule, told.append, program)
    races = list(curved)
    assert {row.median for rows in races for row in rows if row.test == POWERINFER} == {0.0002}
    found = section(rows_of(*(row for rows in races for row in rows)))
    (table,) = found.tables
    few, many = (
        {n: c.value for n, c in zip(table.columns, row, strict=True)} for row in table.rows
    )
    assert few["Active"] == pytest.approx(0.2, rel=0.1)
    assert many["Active"] == pytest.approx(0.6, rel=0.1)
    assert 0 < few["Fire"] < few["Active"]
    assert few["Bytes allow"] > many["Bytes allow"]
    assert few["Times PowerInfer"] > 0
    assert len(found.plots) == 1
    assert len(told) == 4


def test_a_peer_that_is_not_there_has_a_line(sparse_model):
    """And no column."""
    rows = [row for rows in curve(sparse_model, sparse_model, (0.5,), 1, ONCE, str) for row in rows]
    found = section(rows_of(*rows))
    assert found.notes == ["PowerInfer is absent: it is not named: --powerinfer PROGRAM."]
    assert "Times PowerInfer" not in found.tables[0].columns
