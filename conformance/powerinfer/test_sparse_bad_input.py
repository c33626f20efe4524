"""Invalid sparse files, and options that a file cannot satisfy: one plain line each, and nothing
half-loaded stays open."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.support.models.small_models import Small, tampered
from conformance.support.models.sparse_files import SmallSparse
from conformance.support.models.steps import loaded
from engine import Engine
from engine.config import ModelError
from engine.gguf.file import GGUFError
from engine.model import Model
from engine.options import Options
from reference.formats import FORMATS
from reference.models.transformer import Weight

SMALL = SmallSparse()


def without(*names: str) -> dict[str, None]:
    return dict.fromkeys(names)


def reshaped(name: str, rows: int, elements: int, form: str = "F32") -> dict[str, Weight]:
    """The matrix of another shape or format."""
    values = np.random.default_rng(0).standard_normal((rows, elements), np.float32)
    return {name: Weight(FORMATS[form].quantise(values), form)}


def refusal(path: Path, **options: Any) -> str:
    """The error line; the file and the process have no more open than before."""
    held = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 0
    with pytest.raises((ModelError, GGUFError)) as caught:
        Engine.load(path, threads=1, context=32, **options)
    if held:
        assert len(list(Path("/proc/self/fd").iterdir())) == held
    line = str(caught.value)
    assert line.isprintable()
    return line.removeprefix(f"{path}: ")


FILES: dict[str, tuple[dict[str, Any], str]] = {
    "no fc1 in block 1": (without("blk.1.fc1.weight"), "tensor blk.1.fc1.weight is missing"),
    "no fc1 in block 0": (without("blk.0.fc1.weight"), "tensor blk.0.fc1.weight is missing"),
    "no fc2 in block 1": (without("blk.1.fc2.weight"), "tensor blk.1.fc2.weight is missing"),
    "no predictor in block 1": (without("blk.1.fc1.weight", "blk.1.fc2.weight"),
                                "tensor blk.1.fc1.weight is missing"),
    "no predictor in block 0": (without("blk.0.fc1.weight", "blk.0.fc2.weight"),
                                "tensor blk.0.fc1.weight is missing"),
    "ranks differ": (reshaped("blk.0.fc2.weight", 96, 64),
                     "tensor blk.0.fc2.weight is [96, 64], not [96, 32]"),
    "too few neurons": (reshaped("blk.1.fc2.weight", 95, 64),
                        "tensor blk.1.fc2.weight is [95, 64], not [96, 64]"),
    "another hidden": (reshaped("blk.1.fc1.weight", 64, 96),
                       "tensor blk.1.fc1.weight is [64, 96], not [64, 64]"),
    "no down in block 0": (without("blk.0.ffn_down_t.weight"),
                           "tensor blk.0.ffn_down_t.weight is missing"),
    "no down in block 1": (without("blk.1.ffn_down_t.weight"),
                           "tensor blk.1.ffn_down_t.weight is missing"),
    "down not transposed": (reshaped("blk.1.ffn_down_t.weight", 64, 96),
                            "tensor blk.1.ffn_down_t.weight is [64, 96], not [96, 64]"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "words"), FILES.values(), ids=FILES.keys())
def test_bad_tensors_are_named(change, words, tmp_path):
    """Whether neurons are skipped where it pays or in every block."""
    path = tampered(SMALL, change).write(tmp_path / "tampered.gguf")
    for mode in ("auto", "on"):
        assert refusal(path, sparse=mode) == words


@pytest.mark.parametrize("magic", ["PWRI", "GGUF"])
def test_files_without_predictors_are_refused(magic, tmp_path):
    """A file with a sparse magic is refused; so is a plain file if sparsity is required."""
    path = replace(SMALL, ranks=(), magic=magic).write(tmp_path / "small.gguf")
    words = "tensor blk.0.fc1.weight (a predictor) is missing"
    assert refusal(path, sparse="on") == words
    if magic == "PWRI":
        assert refusal(path) == words


def test_ranks_with_partial_blocks_are_refused(tmp_path):
    """48 elements are not a row of Q4_0, whatever the header claims."""
    path = replace(SMALL, predictor="Q4_0", ranks=(64, 64)).write(tmp_path / "small.gguf")
    data = path.read_bytes()
    name = b"blk.0.fc2.weight"
    at = data.index(name) + len(name) + 4  # the number of dimensions, then ne0
    assert int.from_bytes(data[at : at + 8], "little") == 64
    path.write_bytes(data[:at] + (48).to_bytes(8, "little") + data[at + 8 :])
    line = refusal(path)
    assert "blk.0.fc2.weight" in line
    assert "48" in line


def test_formats_without_sparse_kernels_are_named(tmp_path):
    """They are named; in automatic mode the engine runs the block dense with a note."""
    change = reshaped("blk.1.ffn_gate.weight", 96, 64, "Q5_0")
    path = tampered(SMALL, change).write(tmp_path / "small.gguf")
    line = refusal(path, sparse="on")
    assert line.startswith("tensor blk.1.ffn_gate.weight is in Q5_0, which has no sparse kernels")
    assert all(known in line for known in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K"))
    for mode, notes in (("auto", [line]), ("off", [])):
        with loaded(path, context=32, sparse=mode) as model:
            assert model.notes[: len(notes)] == notes
            assert np.isfinite(model.evaluate([3, 4, 5], 0)).all()


def test_invalid_thresholds_are_refused(tmp_path):
    path = replace(SMALL, threshold=float("nan")).write(tmp_path / "nan.gguf")
    assert refusal(path) == "powerinfer.sparse_threshold is nan, not a number"
    Model(path, Options(threads=1, context=32, threshold=0.0)).close()  # another one will do
    path = SMALL.write(tmp_path / "small.gguf")
    assert refusal(path, threshold=float("nan")) == "the sparse threshold is nan, not a number"


def test_sparse_options_of_dense_models_are_refused(tmp_path):
    path = Small().write(tmp_path / "dense.gguf")
    words = "not sparse: it has neither predictors nor ffn_down_t"
    assert refusal(path, threshold=0.5) == refusal(path, sparse="on") == words
    assert refusal(path, sparse="maybe") == "sparse is 'maybe': want auto, on, off"


TEXT = "3 4 5 6 " * 20
COMMANDS: dict[str, list[str]] = {
    "run": ["-p", TEXT, "-n", "2"], "plan": [], "perplexity": ["-", "-c", "16"],
    "profile": ["-d", "2"], "chat": ["--template", "chatml"],
    "bench": ["-p", "4", "-n", "0", "--peers", "none"],
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_options_reach_the_engine(inside, command, tmp_path, monkeypatch):
    """Every command that runs a model has the options; the threshold has PowerInfer's variable."""
    path = SMALL.write(tmp_path / "small.gguf")
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    rest = [str(text) if word == "-" else word for word in COMMANDS[command]]

    def said(*options: str, code: int = 1) -> str:
        """The last line; `bench` notes before it that other programs run."""
        ended, _, stderr = inside(command, path, *rest, *options)
        assert ended == code
        return stderr.splitlines()[-1]

    wrong = said("--sparse", "maybe", code=2)
    assert "--sparse is 'maybe'" in wrong
    assert "nan, not a number" in said("--sparse-threshold", "nan")
    monkeypatch.setenv("LLAMA_SPARSE_PRED_THRESHOLD", "nan")
    assert "nan, not a number" in said("--union")
    monkeypatch.setenv("LLAMA_SPARSE_PRED_THRESHOLD", "much")
    assert said("--union").endswith("LLAMA_SPARSE_PRED_THRESHOLD is 'much', not a number")


def test_plan_shows_the_sparse_nodes(inside, tmp_path):
    path = SMALL.write(tmp_path / "small.gguf")
    for mode, union in (("on", False), ("on", True), ("off", False)):
        options = ["--sparse", mode, *(["--union"] if union else [])]
        code, stdout, _ = inside("plan", path, "--json", *options)
        nodes = {row["node"]: row["op"] for row in json.loads(stdout)["nodes"]}
        assert code == 0
        assert nodes["blk.1.ffn_gate"] == ("sparse_linear" if mode == "on" else "linear")
        assert ("union_mask" in nodes.values()) == union
