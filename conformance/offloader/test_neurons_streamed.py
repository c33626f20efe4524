"""Neurons that come from disk when predictors name them give the bits of neurons in memory."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.support.bit_laws import (  # noqa: F401 - laws, of this file's subject
    Subject,
    test_batch_limit,
    test_batched_or_alone,
    test_chunks,
    test_copied_prefix,
    test_removed_and_evaluated_anew,
    test_threads,
    test_tree_of_tokens,
)
from conformance.support.budgets import (
    bits,
    budgeted,
    bundled_of,
    neurons_of,
    streamed_subject,
    truth_of,
    wanted,
)
from conformance.support.small_families import SmallFalcon, SmallOPT, sparse
from conformance.support.small_models import Small, Tensors, tampered
from conformance.support.sparse_files import SMALL_MODELS, SmallSparse
from engine.model import Model
from reference.formats import FORMATS
from reference.op import Array
from reference.transformer import Weight

pytestmark = pytest.mark.usefixtures("in_time")
EVERY, NONE = -1e30, 1e30


def written(small: Small) -> Callable[[Path], Path]:
    return lambda path: sparse(small, path)


TWO = replace(SMALL_MODELS["Q4_K"], blocks=2, ranks=(64, 64), finer="Q6_K")
BAMBOO = SmallSparse(format="F16", architecture="bamboo", activation="drelu")
MODELS: dict[str, Callable[[Path], Path]] = {
    **{f: SMALL_MODELS[f].write for f in ("F32", "F16", "Q8_0", "Q4_0")},
    "Q4_K": replace(TWO, finer="").write,
    "BF16, tied": SmallSparse(format="BF16", predictor="F16", tied=True, blocks=3,
                              ranks=(32, 32, 64), shares=(0.1, 0.9, 0.4)).write,
    "Q4_K and Q6_K": TWO.write,
    "bamboo": lambda path: BAMBOO.write(path, attention__layer_norm_rms_epsilon=1e-5),
    "falcon": written(SmallFalcon(two_norms=True)),
    "opt": written(SmallOPT()),
}  # fmt: skip
each_model = pytest.mark.parametrize("write", MODELS.values(), ids=MODELS)


@pytest.fixture(params=["Q4_0", "bamboo"], scope="module")
def subject(request, tmp_path_factory):
    """With the least memory."""
    path = MODELS[request.param](tmp_path_factory.mktemp("neurons") / "small.gguf")
    with streamed_subject(path, 0, sparse="on") as found:
        assert found.model.offload.neurons
        yield found


def misses(model: Model) -> int:
    """Neurons that were read."""
    return int(neurons_of(model).window.state.misses.sum())


@each_model
def test_every_budget_gives_the_bits_of_no_budget(write, tmp_path):
    """From a pool for one block's neurons to one for all: a step may need more than its quota."""
    path = write(tmp_path / "small.gguf")
    truth, wants = truth_of(path, sparse="on"), wanted(path)
    shares = []
    for i, budget in enumerate(wants.budgets(5)):
        with budgeted(path, budget, threads=1 + i % 3) as model:
            assert bits(model) == truth
            once = misses(model)
            assert bits(model) == truth
            twice = misses(model)
            shares.append(neurons_of(model).kept_share)
    assert shares[0] < shares[-1] == 1
    assert once == twice


@each_model
def test_however_neurons_lie_on_disk(write, tmp_path):
    """Side by side, each matrix by itself, and bundled in the model's own file."""
    path, bundled = write(tmp_path / "small.gguf"), tmp_path / "bundled.gguf"
    bundled_of(path, bundled)
    truth = truth_of(path, sparse="on")
    assert truth_of(bundled, sparse="on") == truth
    for source, several in ((path, True), (path, False), (bundled, True)):
        least = wanted(source, neuron_bundles=several).least
        with budgeted(source, least, neuron_bundles=several, threads=2) as model:
            sections = {len(s.sections) for s in neurons_of(model).sources.values()}
            assert (sections == {1}) == several
            assert bits(model) == truth


@pytest.mark.parametrize("window", [0, 1, 3, None])
@pytest.mark.parametrize("name", ["F16", "Q4_K and Q6_K", "opt"])
def test_any_window(name, window, tmp_path):
    """However long unused neurons stay, where none can and where all could."""
    path = MODELS[name](tmp_path / "small.gguf")
    truth, wants = truth_of(path, sparse="on"), wanted(path)
    read = []
    for budget in (wants.least, wants.all):
        with budgeted(path, budget, neuron_window=window, threads=2) as model:
            assert bits(model) == truth
            read.append(misses(model))
    assert read[1] <= read[0]


@each_model
@pytest.mark.parametrize("union", [False, True], ids=["", "union"])
def test_all_none_and_some(write, union, tmp_path):
    """Thresholds that name all neurons or none, and others between steps."""
    path = write(tmp_path / "small.gguf")
    least = wanted(path).least
    for first, second in ((EVERY, NONE), (NONE, 0.5), (0.0, EVERY)):
        options = {"threshold": first, "union": union, "sparse": "on"}
        with budgeted(path, 0, **options) as model:
            truth = bits(model, second)
        with budgeted(path, least, threads=2, **options) as model:
            assert bits(model, second) == truth


def test_a_model_that_skips_nothing(tmp_path):
    """Its matrices stream as wholes, out of bundles too."""
    path, bundled = TWO.write(tmp_path / "small.gguf"), tmp_path / "bundled.gguf"
    bundled_of(path, bundled)
    truth = truth_of(path, sparse="off")
    for source in (path, bundled):
        with budgeted(source, wanted(source, sparse="off").least, sparse="off") as model:
            assert model.offload.neurons is None
            assert bits(model) == truth


def one_dense(weights: dict[str, Weight], norms: dict[str, Array]) -> Tensors:
    """Up of the first block in a format that no sparse kernel has."""
    name = "blk.0.ffn_up.weight"
    values = FORMATS["Q4_K"].dequantise(weights[name].data)
    return {**weights, name: Weight(FORMATS["Q6_K"].quantise(values), "Q6_K")}, norms


@pytest.mark.parametrize("bundled", [False, True], ids=["", "bundled"])
def test_blocks_that_run_dense_alone(bundled, tmp_path, monkeypatch):
    """Their matrices stream as wholes beside other blocks' neurons."""
    monkeypatch.setattr("engine.load.dense_where_faster", lambda config, *_: (config, []))
    path = tampered(TWO, one_dense).write(tmp_path / "small.gguf")
    with budgeted(path, 0, sparse="auto") as model:
        truth = bits(model)
        assert list(model.config.sparsity.ranks) == [1]
    if bundled:
        path = path.rename(tmp_path / "plain.gguf")
        bundled_of(path, tmp_path / "small.gguf")
        path = tmp_path / "small.gguf"
    wants = wanted(path)
    for budget in (wants.least, wants.all):
        with budgeted(path, budget) as model:
            assert neurons_of(model).blocks == (1,)
            assert any("Q6_K, which runs dense" in note for note in model.notes)
            assert bits(model) == truth
