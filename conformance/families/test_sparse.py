"""Falcon and OPT in PowerInfer's format: ReLU, transposed down, predictors in each block."""

from dataclasses import replace

import numpy as np
import pytest

from conformance.llama.peers.compare import EXACT, demand_near
from conformance.support.models.small_families import SmallFalcon, SmallOPT, exact, prompt, sparse
from conformance.support.models.small_models import tampered
from conformance.support.models.steps import loaded, logits
from reference.activations import relu

SUBJECTS = {"Falcon": SmallFalcon(two_norms=True), "OPT": SmallOPT()}
each_subject = pytest.mark.parametrize("small", SUBJECTS.values(), ids=SUBJECTS)


@each_subject
def test_all_neurons_are_the_dense_model(small, tmp_path):
    """With every neuron active the bits are those of the dense run, and the logits those of the
    formula with ReLU."""
    path, tokens = sparse(small, tmp_path / "small.gguf"), prompt(small)
    every = logits(path, tokens, sparse="on", threshold=-1e30)
    assert np.array_equal(every, logits(path, tokens, sparse="off"))
    demand_near(every, exact(small, tokens, activation=relu), EXACT)


@each_subject
def test_no_neuron_leaves_the_bias(small, tmp_path):
    """Without active neurons a feed-forward network adds its last bias, if it has one."""
    path, tokens = sparse(small, tmp_path / "small.gguf"), prompt(small)
    downs = {name: weight for name, weight in small.tensors()[0].items() if "ffn_down" in name}
    zeros = {name: replace(w, data=np.zeros_like(w.data)) for name, w in downs.items()}
    truth = exact(tampered(small, zeros), tokens, activation=relu).astype(np.float32)
    demand_near(logits(path, tokens, sparse="on", threshold=1e30), truth, EXACT)


def test_falcons_predictor_reads_the_blocks_input(tmp_path):
    """As in PowerInfer: in the first block that is the token's embedding, before the norm."""
    with loaded(sparse(SUBJECTS["Falcon"], tmp_path / "small.gguf"), sparse="on") as model:
        (fc1,) = [s.node for s in model.plan.steps if s.node.label == "blk.0.fc1"]
        assert getattr(fc1.arguments["x"], "name", "") == "token_embd"
