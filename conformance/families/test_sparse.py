"""Falcon and OPT as PowerInfer keeps them: ReLU, down transposed, predictors in each block."""

from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from conformance.families.small import SmallFalcon, SmallOPT
from conformance.families.test_families import Subject, exact, prompt
from conformance.llama.peers.compare import EXACT, Gap
from engine.model import Model
from engine.options import Options
from reference.activations import relu
from reference.op import Array
from reference.transformer import Weight

RANK = 8
SUBJECTS = {"Falcon": SmallFalcon(two_norms=True), "OPT": SmallOPT()}
each_subject = pytest.mark.parametrize("small", SUBJECTS.values(), ids=SUBJECTS)


def f32(values: Array) -> Weight:
    return Weight(np.ascontiguousarray(values, np.float32).view(np.uint8), "F32")


def sparse(small: Subject, path: Path) -> Path:
    """The model with its magic; predictors are random."""
    weights, norms = small.tensors()
    rng = np.random.default_rng(small.seed)
    for i in range(small.blocks):
        block = f"blk.{i}"
        down = weights.pop(f"{block}.ffn_down.weight").data.view(np.float32)
        weights[f"{block}.ffn_down_t.weight"] = f32(down.T)
        weights[f"{block}.fc1.weight"] = f32(rng.standard_normal((RANK, small.hidden)))
        weights[f"{block}.fc2.weight"] = f32(rng.standard_normal((small.ffn, RANK)))
        if f"{block}.ffn_down.bias" in norms:
            norms[f"{block}.ffn_down_t.bias"] = norms.pop(f"{block}.ffn_down.bias")
    with patch.object(type(small), "tensors", lambda _: (weights, norms)):
        small.write(path)
    path.write_bytes(b"PWRI" + path.read_bytes()[4:])
    return path


def logits(path: Path, tokens: list[int], **options: object) -> Array:
    model = Model(path, Options(threads=1, kv_format="F32", **options))  # type: ignore[arg-type]
    found = model.step(tokens, range(len(tokens)), [(0,)] * len(tokens), range(len(tokens)))
    model.close()
    return found.copy()


@each_subject
def test_all_neurons_are_the_dense_model(small: Subject, tmp_path: Path) -> None:
    """With every neuron active the bits are those of the dense run, and the formula's with ReLU."""
    path, tokens = sparse(small, tmp_path / "small.gguf"), prompt(small)
    every = logits(path, tokens, sparse="on", threshold=-1e30)
    assert np.array_equal(every, logits(path, tokens, sparse="off"))
    gap = Gap.between(every, exact(small, tokens, activation=relu).astype(np.float32))
    assert gap.within(EXACT), gap


@each_subject
def test_no_neuron_leaves_the_bias(small: Subject, tmp_path: Path) -> None:
    """With none active a feed-forward network adds its last bias, where it has one."""
    path, tokens = sparse(small, tmp_path / "small.gguf"), prompt(small)
    weights, norms = small.tensors()
    for name, weight in weights.items():
        if "ffn_down" in name:
            weights[name] = replace(weight, data=np.zeros_like(weight.data))
    with patch.object(type(small), "tensors", lambda _: (weights, norms)):
        truth = exact(small, tokens, activation=relu).astype(np.float32)
    gap = Gap.between(logits(path, tokens, sparse="on", threshold=1e30), truth)
    assert gap.within(EXACT), gap


def test_falcons_predictor_reads_the_blocks_input(tmp_path: Path) -> None:
    """As in PowerInfer: of the first block that is the token's embedding, not the norm of it."""
    model = Model(sparse(SUBJECTS["Falcon"], tmp_path / "small.gguf"), Options(sparse="on"))
    (fc1,) = [s.node for s in model.plan.steps if s.node.label == "blk.0.fc1"]
    read = fc1.arguments["x"]
    assert getattr(read, "name", "") == "token_embd"
    model.close()
