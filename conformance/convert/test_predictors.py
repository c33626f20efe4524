"""`assay convert --predictors`: a checkpoint and PowerInfer's predictors become a sparse file."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from typer.testing import CliRunner

from conformance.llama.peers.checkpoint import CHECKPOINTS, Checkpoint
from conformance.llama.peers.compare import EXACT, Gap, demand_near
from conformance.llama.peers.folder import write_folder, write_json
from conformance.support.models import family_checkpoints as families
from conformance.support.models import steps, torch_archive
from engine.atomic_write import OutputError
from engine.convert import CheckpointError, convert, predictors
from engine.gguf.file import GGUFFile
from engine.shell.program import app
from reference.formats import FORMATS
from reference.op import Array

SMALL = replace(
    CHECKPOINTS["blocks"], num_hidden_layers=2, hidden_size=64, head_dim=8, intermediate_size=96
)
RANKS = (32, 64)
THRESHOLD = 0.25


def matrices(rank: int, small: Checkpoint = SMALL) -> dict[str, Array]:
    """A predictor of a block."""
    rng = np.random.default_rng(rank)
    return {
        "fc1.weight": rng.standard_normal((rank, small.hidden_size), np.float32),
        "fc2.weight": rng.standard_normal((small.intermediate_size, rank), np.float32),
    }


def write_predictors(folder: Path, **config: Any) -> Path:
    folder.mkdir()
    for i, rank in enumerate(RANKS):
        torch_archive.save(matrices(rank), folder / f"model_{i}.pt")
    write_json(folder / "config.json", config)
    return folder


@pytest.fixture
def model(tmp_path):
    return write_folder(SMALL, tmp_path / "model", hidden_act="relu")


@pytest.fixture
def folder(tmp_path):
    return write_predictors(tmp_path / "predictors", sparse_threshold=THRESHOLD)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "model.gguf"


def tensors(path: Path) -> dict[str, tuple[str, Array]]:
    with GGUFFile(path) as file:
        return {n: (i.type_name, file.tensor(n).copy()) for n, i in file.tensors.items()}


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0"])
def test_predictors_are_added_to_the_file(model, folder, out, kind, monkeypatch):
    """Down is transposed and predictors are added; other tensors are as without them, also when
    converted a few rows at a time."""
    dense = out.with_name("dense.gguf")
    convert(model, dense, kind)
    monkeypatch.setattr(predictors, "PIECE", 1000)
    done = convert(model, out, kind, predictors=folder)
    assert done.notes == []
    before, after = tensors(dense), tensors(out)
    weights = SMALL.weights()
    layout = FORMATS[kind]
    for i, rank in enumerate(RANKS):
        del before[f"blk.{i}.ffn_down.weight"]
        down = weights[f"model.layers.{i}.mlp.down_proj.weight"].T
        wanted = {f"blk.{i}.{name}": matrix for name, matrix in matrices(rank).items()}
        for name, matrix in {f"blk.{i}.ffn_down_t.weight": down, **wanted}.items():
            found, stored = after.pop(name)
            assert found == kind
            assert_array_equal(stored, layout.quantise(np.ascontiguousarray(matrix)), name)
    assert before.keys() == after.keys()
    for name, (found, stored) in before.items():
        assert after[name][0] == found
        assert_array_equal(after[name][1], stored, name)
    with GGUFFile(dense) as plain, GGUFFile(out) as file:
        assert (plain.magic, file.magic) == ("GGUF", "PWRI")
        assert file.metadata == plain.metadata | {"powerinfer.sparse_threshold": THRESHOLD}


def logits(path: Path, **options: Any) -> Array:
    return steps.logits(path, SMALL.tokens(9), **options)


def test_a_converted_model_runs(model, folder, out):
    """With all neurons active it equals the dense model; its threshold is the file's."""
    convert(model, out, "F32")
    dense = logits(out)
    convert(model, out, "F32", predictors=folder)
    demand_near(logits(out, sparse="on", threshold=float("-inf")), dense, EXACT)
    some = logits(out, sparse="on")
    assert not Gap.between(some, dense).within(EXACT)
    assert_array_equal(some, logits(out, sparse="on", threshold=THRESHOLD))


@pytest.mark.parametrize("name", ["Falcon", "OPT"])
def test_families_without_gate_and_with_biases(tmp_path, out, name):
    """Families without gate and with biases are converted; the bias of down is kept."""
    config, weights = {
        "Falcon": (families.FALCON | {"activation": "relu"}, families.falcon()),
        "OPT": (families.OPT, families.opt()),
    }[name]
    model = families.written(tmp_path / "model", config, weights)
    folder = tmp_path / "predictors"
    folder.mkdir()
    pair = {"fc1.weight": (8, families.HIDDEN), "fc2.weight": (families.FFN, 8)}
    values = {name: np.ones(dims, np.float32) for name, dims in pair.items()}
    torch_archive.save(values, folder / "model_0.pt")
    done = convert(model, out, "F32", predictors=folder)
    assert done.notes == [f"{folder}: nothing is said of sparse_threshold, so it is 0"]
    found = tensors(out)
    down = next(w for n, w in weights.items() if n.endswith(("dense_4h_to_h.weight", "fc2.weight")))
    assert_array_equal(found["blk.0.ffn_down_t.weight"][1].view(np.float32), down.T)
    assert ("blk.0.ffn_down_t.bias" in found) == (name == "OPT")
    assert not any(".ffn_down." in tensor for tensor in found)
    with steps.loaded(out, sparse="on") as runs:
        assert dict(runs.config.sparsity.ranks) == {0: 8}


def test_another_activation_is_noted(tmp_path, folder, out):
    """PowerInfer and the engine run ReLU whatever the model was trained with: a note says so."""
    model = write_folder(SMALL, tmp_path / "model", hidden_act="silu")
    done = convert(model, out, predictors=folder)
    assert done.notes == ["its activation is swiglu; a sparse model runs with reglu"]


def resave(folder: Path, block: int = 0, **changed: Array | None) -> None:
    """A predictor with other matrices, or without one."""
    pair: dict[str, Array | None] = {**matrices(RANKS[block])}
    pair |= {name.replace("__", "."): matrix for name, matrix in changed.items()}
    held = {name: matrix for name, matrix in pair.items() if matrix is not None}
    torch_archive.save(held, folder / f"model_{block}.pt")


def with_nan(matrix: Array) -> Array:
    matrix[3, 5] = np.nan
    return matrix


HIDDEN, FFN = SMALL.hidden_size, SMALL.intermediate_size
SHAPES = {  # of fc1 or fc2 in the first block, and what it should be
    "another hidden": ("fc1", (32, HIDDEN + 1), (32, HIDDEN)),
    "another rank": ("fc2", (FFN, 31), (FFN, 32)),
    "fewer neurons": ("fc2", (FFN - 1, 32), (FFN, 32)),
    "no rank": ("fc1", (0, HIDDEN), (1, HIDDEN)),
    "one dimension": ("fc1", (32,), (32, HIDDEN)),
}
Corrupt = Callable[[Path], object]
FAULTS: dict[str, tuple[Corrupt, str]] = {
    "no folder": (lambda f: f.rename(f.with_name("gone")), "s: this is not a folder; want that of"),
    "a layer missing": (
        lambda f: (f / "model_1.pt").unlink(), "s/model_1.pt: there is no such file"
    ),
    "none at all": (
        lambda f: [(f / f"model_{i}.pt").unlink() for i in (0, 1)], "model_0.pt: there is no such"
    ),
    "one too many": (
        lambda f: (f / "model_2.pt").write_bytes(b""),
        "model_2.pt: a predictor of another model: this one has 2 blocks",
    ),
    "no fc2": (lambda f: resave(f, fc2__weight=None), "model_0.pt: tensor fc2.weight is missing"),
    "a bias": (
        lambda f: resave(f, fc1__bias=np.zeros(32)),
        "model_0.pt: tensor fc1.bias has no place in a predictor",
    ),
    **{
        name: (
            partial(resave, **{f"{fc}__weight": np.zeros(dims, np.float32)}),
            f"model_0.pt: tensor {fc}.weight is {list(dims)}, not {list(wanted)}",
        )
        for name, (fc, dims, wanted) in SHAPES.items()
    },
    "integers": (
        lambda f: resave(f, fc1__weight=np.zeros((32, HIDDEN), np.int32)),
        "model_0.pt: tensor fc1.weight is I32; readable are F32, F16, BF16",
    ),
    "NaN": (
        lambda f: resave(f, fc2__weight=with_nan(matrices(32)["fc2.weight"])),
        "model_0.pt: tensor blk.0.fc2.weight: element 5 of row 3 is nan, which F16 cannot hold",
    ),
    "a table of nothing": (
        lambda f: torch_archive.save([], f / "model_0.pt"), "this is not a table of tensors"
    ),
    "text": (
        lambda f: (f / "model_1.pt").write_text("a predictor"),
        "model_1.pt: not a complete PyTorch file",
    ),
    "a threshold that is NaN": (
        lambda f: write_json(f / "config.json", {"sparse_threshold": float("nan")}),
        "config.json: sparse_threshold must be a finite number, got nan",
    ),
    "a threshold in words": (
        lambda f: write_json(f / "config.json", {"sparse_threshold": "0"}),
        "config.json: sparse_threshold must be a finite number, got '0'",
    ),
    "a threshold beyond float32": (
        lambda f: write_json(f / "config.json", {"sparse_threshold": 1e39}),
        "config.json: sparse_threshold is 1e+39, which float32 cannot hold",
    ),
    "a config that is none": (
        lambda f: (f / "config.json").write_text("{"), "config.json: this is not JSON"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("corrupt", "line"), FAULTS.values(), ids=FAULTS)
def test_bad_predictors_are_refused(model, folder, out, corrupt, line):
    """One line names the file; an older output file stays, and no other file is left."""
    out.write_bytes(b"older")
    corrupt(folder)
    before = sorted(path.name for path in out.parent.iterdir())
    with pytest.raises(CheckpointError) as caught:
        convert(model, out, predictors=folder)
    assert line in str(caught.value)
    assert str(caught.value).startswith(str(folder))
    assert str(caught.value).isprintable()
    assert out.read_bytes() == b"older"
    assert sorted(path.name for path in out.parent.iterdir()) == before


def test_a_predictor_modified_while_it_is_read_is_refused(model, folder, out):
    """A predictor that changes while it is read is an error, and none may be the output file."""
    file = folder / "model_1.pt"
    with pytest.raises(CheckpointError, match=r"model_1\.pt: it was changed while it was read"):
        convert(model, out, predictors=folder, progress=lambda *_: os.utime(file, (1, 1)))
    with pytest.raises(CheckpointError, match=r"model_1\.pt: truncated while being read"):
        convert(model, out, predictors=folder, progress=lambda *_: os.truncate(file, 2000))
    with pytest.raises(OutputError, match="it is a file of the model"):
        convert(model, folder / "model_0.pt", predictors=folder)
    assert not out.exists()


def test_the_command_reports_predictors(model, folder, out):
    words = ["convert", str(model), str(out), "--predictors", str(folder), "--json"]
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 0, told.stderr
    assert json.loads(told.stdout)["tensors"] == len(tensors(out))
    with GGUFFile(out) as file:
        assert file.magic == "PWRI"
