"""The plan: chosen kernels, argument buffers, changing sizes, first-fit memory."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from conformance.support.models.small_families import SmallQwen
from conformance.support.models.small_models import Small
from conformance.support.models.steps import loaded
from engine.graph import Graph, Value
from engine.shell.program import app
from reference.quantise_activations import QUANTISING


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("plan")


MODELS = {f: Small(format=f, biases=True) for f in ("F32", "BF16", "Q8_0", "Q4_0")}
MODELS["heads as rows"] = SmallQwen()


@pytest.fixture(params=MODELS, scope="module")
def model(folder, request):
    path = MODELS[request.param].write(folder / f"{request.param}.gguf")
    with loaded(path, context=64, batch=16, outputs=4) as model:
        yield model


def test_activations_are_quantised_once(model):
    """q, k and v read one quantisation of their common input, gate and up another."""
    int8 = [s for s in model.plan.steps if s.kernel.activations in QUANTISING]
    made = [s for s in model.plan.steps if s.node.op in QUANTISING.values()]
    assert len({s.arrays["q"].name for s in int8}) == len(made)
    if int8:
        assert len(made) == 4 * model.config.blocks + 1
        for i in range(model.config.blocks):
            readers = {s.node.label: s.arrays["q"] for s in int8}
            q, k, v = (readers[f"blk.{i}.attn_{part}"] for part in "qkv")
            gate, up = (readers[f"blk.{i}.ffn_{part}"] for part in ("gate", "up"))
            assert q == k == v
            assert gate == up != q


def test_sizes_that_disagree_are_refused():
    """The error names the op, the argument and both sizes."""
    graph = Graph()
    x = Value("x", "input", "f32", ("tokens", 32))
    y = Value("y", "input", "f32", ("tokens", 33))
    with pytest.raises(ValueError, match=r"add: y \(y\) has \w+ = 33, expected 32"):
        graph("add", "sum", x=x, y=y)


def test_invalid_nodes_are_refused():
    """An unknown op, unknown arguments and a used name are errors that name the node."""
    graph, x = Graph(), Value("x", "input", "f32", ("tokens", 8))
    graph("silu", "blk.0.active", x=x)
    for op, label, given, line in (
        ("swish", "blk.1.active", {"x": x}, "blk.1.active: there is no op 'swish'; `assay ops`"),
        ("silu", "blk.1.active", {"gate": x}, "blk.1.active: silu takes x; given gate"),
        ("add", "blk.1.both", {"x": x}, "blk.1.both: add takes x, y; given x"),
        ("silu", "blk.0.active", {"x": x}, "blk.0.active: another node already has this label"),
    ):
        with pytest.raises(ValueError, match=line):
            graph(op, label, **given)


def test_plan_json_is_the_plan(folder):
    """`assay plan --json` prints exactly the nodes, kernels and addresses that would run."""
    path = Small(format="Q8_0").write(folder / "printed.gguf")
    done = CliRunner().invoke(app, ["plan", str(path), "--batch", "16", "--json"])
    assert done.exit_code == 0
    printed: dict[str, Any] = json.loads(done.stdout)
    with loaded(path, batch=16) as model:
        plan = model.plan
        assert printed["arena_bytes"] == plan.arena_bytes
        assert [row["node"] for row in printed["nodes"]] == [s.node.label for s in plan.steps]
        assert [row["kernel"] for row in printed["nodes"]] == [s.kernel.name for s in plan.steps]
        for row, step in zip(printed["nodes"], plan.steps, strict=True):
            assert row["arena"] == plan.offsets.get(step.output.name)
            assert row["reads"] == [value.name for value in step.reads()]
