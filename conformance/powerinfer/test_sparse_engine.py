"""Sparse feed-forward networks in the engine: logits equal the formula's, and all neurons active,
none active and the choices of "auto" have exact results, bit for bit.

The bound is test_step's: trials of the reference with every op perturbed by its bound. A trial's
predictors are perturbed as well, and so are the neurons that they predict.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import reference.models.transformer as formula
from conformance.support.models import steps
from conformance.support.models.formula import (
    demand_explained,
    distances,
    exact,
    furthest,
    logits_of,
    prompt,
)
from conformance.support.models.small_models import Tensors, tampered
from conformance.support.models.sparse_files import SMALL_MODELS, SmallSparse
from engine import sparsity
from engine.compile import packed_weights
from engine.compile.packed_weights import Jobs, Packed, pack
from engine.config import ModelError
from engine.gguf.file import GGUFFile
from engine.model import Model
from engine.passes.count import count_neurons, neuron_counts
from engine.placement import Activations
from engine.placement.budget import GIB, parts
from engine.placement.statistics import write as write_statistics
from kernels.cache import cache_folder
from reference.models.transformer import Neurons, Weight
from reference.op import Array

EVERY = float("-inf")
NONE = float("inf")


@pytest.fixture(autouse=True)
def no_overhead(monkeypatch):
    """Skipping neurons has no fixed cost, as next to larger networks."""
    monkeypatch.setattr(sparsity, "SKIP_OVERHEAD", 0)


each_model = pytest.mark.parametrize("small", SMALL_MODELS.values(), ids=SMALL_MODELS.keys())
FLOATS = SMALL_MODELS["F32"]


def masks_of(small: SmallSparse, tokens: list[int]) -> dict[str, list[Array]]:
    """By block: the masks of the reference's predictors, and the gates of all neurons."""
    found: dict[str, list[Array]] = {"logits": [], "masks": [], "gates": []}
    active, where_active = formula.active, formula.where_active

    def noted(logits: Array, neurons: Neurons) -> Array:
        found["logits"].append(logits)
        found["masks"].append(active(logits, neurons))
        return found["masks"][-1]

    def gated(x: Array, mask: Array) -> Array:
        found["gates"].append(x)
        return where_active(x, mask)

    with patch.multiple(formula, active=noted, where_active=gated):
        exact(small, tokens)
    found["gates"] = found["gates"][::2]  # the others are those of up
    return found


def bits(model: Model, tokens: list[int], start: int = 0) -> bytes:
    """The logits after each token, of one step."""
    return steps.rows(model, tokens, start).tobytes()


@contextmanager
def loaded(path: Path, **options: Any) -> Iterator[Model]:
    with steps.loaded(path, **{"context": 32, "sparse": "on", **options}) as model:
        yield model


def ops_of(model: Model, block: int) -> set[str]:
    return {s.node.op for s in model.plan.steps if s.node.label.startswith(f"blk.{block}.")}


@each_model
@pytest.mark.parametrize("kind", ["each its own", "union", "dense"])
def test_logits_equal_the_formulas(small, kind, tmp_path):
    """Logits equal the formula's with each token's masks, their union, and every neuron."""
    runs = {"each its own": Neurons(0.0), "union": Neurons(0.0, True), "dense": Neurons(None)}[kind]
    small = replace(small, runs=runs)
    tokens = prompt(small)
    got = logits_of(
        small, tmp_path, tokens, kv_format="F32", union=runs.union,
        sparse="off" if kind == "dense" else "on",
    )  # fmt: skip
    demand_explained(got, small, tokens)


def test_masks_vary_by_token():
    """In every model each block has neurons active for some tokens, for none, for all."""
    for small in SMALL_MODELS.values():
        for mask in masks_of(small, prompt(small))["masks"]:
            each = mask.mean(axis=0)
            assert 0.1 < each.mean() < 0.7
            assert (each == 0).any()
            assert ((each > 0) & (each < 1)).any()


OTHER_MASKS: dict[str, Any] = {
    "threshold": {"runs": Neurons(0.02)},
    "union": {"runs": Neurons(0.0, True)},
    "every neuron": {"runs": Neurons(None)},
    "no neuron": {"runs": Neurons(NONE)},
}


@pytest.mark.parametrize("changes", OTHER_MASKS.values(), ids=OTHER_MASKS.keys())
def test_bound_rejects_other_masks(changes):
    small, tokens = FLOATS, prompt(FLOATS)
    worst, nmse = distances(exact(replace(small, **changes), tokens), exact(small, tokens))
    most, most_nmse = furthest(small, tokens, "F32")
    assert worst > most
    assert nmse > most_nmse


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("relu", lambda x: x),
        ("reglu", lambda gate, up: np.abs(gate) * up),
        ("where_active", lambda x, _: x),
    ],
)
def test_bound_rejects_other_formulas(name, wrong):
    """A predictor without its ReLU, a gate without it, inactive neurons that run."""
    small, tokens = FLOATS, prompt(FLOATS)
    truth = exact(small, tokens)
    most, _ = furthest(small, tokens, "F32")
    with patch.object(formula, name, wrong):
        assert distances(exact(small, tokens), truth)[0] > most


@each_model
@pytest.mark.parametrize("union", [False, True])
def test_every_neuron_active_is_dense(small, union, tmp_path):
    """Bits are the dense ones in a prompt and token by token, by any number of threads."""
    tokens, path = prompt(small), small.write(tmp_path / "small.gguf")
    with loaded(path, sparse="off") as model:
        dense = bits(model, tokens)
        next_one = bits(model, tokens[:1], len(tokens))
    for threads in (1, 3):
        with loaded(path, threshold=EVERY, union=union, threads=threads) as model:
            assert "sparse_linear" in ops_of(model, 0)
            assert bits(model, tokens) == dense
            assert bits(model, tokens[:1], len(tokens)) == next_one


def without_down(weights: dict[str, Weight], norms: dict[str, Array]) -> Tensors:
    """The neurons' outputs are zero."""
    zeros = {
        name: replace(weight, data=np.zeros_like(weight.data))
        for name, weight in weights.items()
        if "ffn_down_t" in name
    }
    return weights | zeros, norms


@each_model
def test_without_active_neurons_the_network_adds_nothing(small, tmp_path):
    path, tokens = small.write(tmp_path / "small.gguf"), prompt(small)
    with loaded(
        tampered(small, without_down).write(tmp_path / "zeros.gguf"), sparse="off"
    ) as model:
        nothing = bits(model, tokens)
    with loaded(path, threshold=NONE) as model:
        assert bits(model, tokens) == nothing


def test_option_overrides_the_files_threshold(tmp_path):
    """A file without a threshold has 0; an option overrides the file's."""
    tokens = prompt(FLOATS)

    def told(in_file: float | None, **options: Any) -> bytes:
        path = replace(FLOATS, threshold=in_file).write(tmp_path / "small.gguf")
        with loaded(path, **options) as model:
            return bits(model, tokens)

    low, high = told(0.0), told(0.5)
    assert low != high
    assert told(None) == low
    assert told(0.5, threshold=0.0) == low
    assert told(0.0, threshold=0.5) == told(None, threshold=0.5) == high


def test_threshold_changes_between_steps(tmp_path):
    """A changed threshold is as a load with it; without a sparse block it is an error."""
    path, tokens = FLOATS.write(tmp_path / "small.gguf"), prompt(FLOATS)
    found = []
    for threshold in (0.5, 0.0, NONE):
        with loaded(path, threshold=threshold) as model:
            found.append(bits(model, tokens))
    with loaded(path) as model:
        for threshold, expected in zip((0.5, 0.0, NONE), found, strict=True):
            model.set_threshold(threshold)
            model.cells.clear()
            assert bits(model, tokens) == expected
        with pytest.raises(ModelError, match="the sparse threshold is nan"):
            model.set_threshold(float("nan"))
    with loaded(path, sparse="off") as model, pytest.raises(ModelError, match="no block runs"):
        model.set_threshold(0.0)


def test_without_predictors(tmp_path):
    """A plain file with only ffn_down_t is dense, with a ReLU gate."""
    small = replace(FLOATS, ranks=(), magic="GGUF", runs=Neurons(None))
    tokens = prompt(small)
    with loaded(FLOATS.write(tmp_path / "with.gguf"), sparse="off") as model:
        dense = bits(model, tokens)
    with loaded(small.write(tmp_path / "without.gguf"), sparse="auto") as model:
        assert model.config.sparsity is None
        assert bits(model, tokens) == dense


@each_model
def test_union_does_not_depend_on_threads(small, tmp_path):
    path, tokens = small.write(tmp_path / "small.gguf"), prompt(small)
    found = set()
    for threads in (1, 2, 5):
        with loaded(path, union=True, threads=threads) as model:
            found.add(bits(model, tokens))
    with loaded(path) as model:
        assert bits(model, tokens) not in found
    assert len(found) == 1


UNEVEN = replace(FLOATS, shares=(0.9, 0.1))
BY_HAND = replace(FLOATS, shares=(1, 0.1))  # where all neurons of block 0 are named


@pytest.mark.parametrize("format", ["F32", "Q8_0"])
def test_auto_chooses_sparse_or_dense_per_block(format, tmp_path):
    """A block whose predictor predicts most neurons runs dense; one note says so."""
    uneven, by_hand = (replace(s, format=format) for s in (UNEVEN, BY_HAND))
    tokens = prompt(uneven)
    with loaded(uneven.write(tmp_path / "uneven.gguf"), sparse="auto") as model:
        assert "sparse_linear" not in ops_of(model, 0)
        assert "sparse_linear" in ops_of(model, 1)
        (note,) = [note for note in model.notes if "dense" in note]
        assert note.startswith(
            "1 of 2 blocks run dense, which is faster: their predictors activate"
        )
        assert model.cells.free == model.cells.capacity
        chosen = bits(model, tokens)
    with loaded(by_hand.write(tmp_path / "by_hand.gguf")) as model:
        assert bits(model, tokens) == chosen
    with loaded(tmp_path / "uneven.gguf") as model:
        assert bits(model, tokens) != chosen


@pytest.mark.parametrize(("threshold", "like"), [(EVERY, "off"), (NONE, "on")])
def test_auto_with_all_blocks_alike(threshold, like, tmp_path):
    """All run dense without any predictors in memory, or all run sparse without a note."""
    path, tokens = FLOATS.write(tmp_path / "small.gguf"), prompt(FLOATS)
    with loaded(path, sparse="auto", threshold=threshold) as model:
        assert (model.config.sparsity is None) == (like == "off")
        assert [note for note in model.notes if "dense" in note] == model.notes
        assert len(model.notes) == (like == "off")
        assert any(".fc1." in name for name in model.plan.inputs) == (like == "on")
        found = bits(model, tokens)
    with loaded(path, sparse=like, threshold=threshold if like == "on" else None) as model:
        assert bits(model, tokens) == found


@pytest.mark.parametrize("batch", [1, 3])
def test_auto_does_not_depend_on_the_batch(batch, tmp_path):
    """Blocks in which skipping pays for some tokens only have the same choice in any batch."""
    small = replace(FLOATS, shares=(0.42, 0.37))
    path = small.write(tmp_path / "small.gguf")
    chosen = []
    for most in (512, batch):
        with loaded(path, sparse="auto", batch=most, context=64) as model:
            found = model.config.sparsity
            chosen.append(set(found.ranks) if found else set())
    assert chosen[0] == chosen[1]


def test_small_networks_run_dense(tmp_path, monkeypatch):
    """If masks and barriers take longer than reading everything."""
    path = replace(FLOATS, shares=(0.1, 0.1)).write(tmp_path / "small.gguf")
    with loaded(path, sparse="auto") as model:
        assert model.notes == []
    monkeypatch.undo()
    monkeypatch.delattr(Model, "evaluate")  # which nobody has to try
    with loaded(path, sparse="auto") as model:
        assert model.notes == ["2 of 2 blocks run dense, which is faster: they are small"]


@pytest.mark.parametrize("threshold", [None, EVERY, NONE])
def test_auto_packs_each_weight_once(threshold, tmp_path, monkeypatch):
    """Rows are packed after the choice."""
    packed: list[str] = []

    def noted(jobs: Jobs, *rest: Any) -> dict[str, Array]:
        packed.extend(job.tensor for job in jobs.values() if isinstance(job, Packed))
        return pack(jobs, *rest)

    monkeypatch.setattr(packed_weights, "pack", noted)
    with loaded(UNEVEN.write(tmp_path / "small.gguf"), sparse="auto", threshold=threshold) as model:
        used = {step.weight for step in model.plan.steps if step.weight}
    assert used <= set(packed)
    assert len(packed) == len(set(packed))


def test_auto_reuses_packed_weights(tmp_path, monkeypatch):
    """Weights that a load stored and the next one maps give the same logits."""
    tokens = prompt(UNEVEN)
    path = replace(UNEVEN, format="Q8_0").write(tmp_path / "small.gguf")
    with loaded(path, sparse="auto") as model:
        plain = bits(model, tokens)
    own = tmp_path / "cache"
    own.mkdir()
    for name in ("certificates.jsonl", "compiled"):
        (own / name).symlink_to(cache_folder().absolute() / name)
    monkeypatch.setenv("ASSAY_CACHE", str(own))
    for _ in range(2):
        with loaded(path, sparse="auto", keep_packed=True) as model:
            assert bits(model, tokens) == plain
            assert not any("packed" in note for note in model.notes)
            mapped = [a for n, a in model.plan.inputs.items() if "@" in n and not a.flags.writeable]
    assert mapped
    assert len(list((own / "packed").iterdir())) == 1


@pytest.mark.parametrize("mode", ["on", "auto"])
def test_any_split_changes_no_bit(mode, tmp_path):
    """For any share of neurons on the GPU no bit changes, and counts are the same."""
    path, tokens = UNEVEN.write(tmp_path / "small.gguf"), prompt(UNEVEN)
    rng, sizes = np.random.default_rng(0), [UNEVEN.ffn] * UNEVEN.blocks
    statistics = tmp_path / "counts.npz"
    write_statistics(statistics, Activations(tuple(rng.integers(0, 99, n) for n in sizes), 99, ""))
    with loaded(path, sparse=mode, passes=(count_neurons,)) as model:
        whole = bits(model, tokens)
        counted = {
            block: found.hits.tolist() for block, found in neuron_counts(model.memory).items()
        }
    with GGUFFile(path) as file:
        dense = parts(file, context=32)
    half = sum(dense.dense.values()) + sum(dense.cache.values()) + 96 * dense.neuron[0]
    with loaded(
        path, sparse=mode, passes=(count_neurons,), vram_budget=half / GIB, activation=statistics
    ) as model:
        places = model.config.sparsity.places if model.config.sparsity else {}
        assert {0, 1} == set(np.concatenate([*places.values()]).tolist())
        assert bits(model, tokens) == whole
        assert {
            block: found.hits.tolist() for block, found in neuron_counts(model.memory).items()
        } == counted
        assert "the device is the CPU: it computes the GPU's part too" in model.notes


def test_neurons_are_counted(tmp_path):
    """Predicted, active and both, over all steps, as NumPy counts them; no bit of the logits
    changes, and counts can be reset."""
    tokens, path = prompt(FLOATS), FLOATS.write(tmp_path / "small.gguf")
    truth = masks_of(FLOATS, tokens)
    nearest = min(np.abs(x).min() for x in (*truth["logits"], *truth["gates"]))
    assert nearest > 1e-5  # float32 errs by less, so it is not this that decides
    with loaded(path) as model:
        logits = bits(model, tokens)
    with loaded(path, passes=(count_neurons,), threads=2, context=64) as model:
        assert bits(model, tokens) == logits
        for i, mask in enumerate(truth["masks"]):
            fires = truth["gates"][i] > 0
            found = neuron_counts(model.memory)[f"blk.{i}"]
            assert found.predicted.tolist() == mask.sum(axis=0).tolist()
            assert found.fired.tolist() == fires.sum(axis=0).tolist()
            assert found.hits.tolist() == (mask * fires).sum(axis=0).tolist()
            assert found.recall == (mask * fires).sum() / fires.sum()
            assert found.precision == (mask * fires).sum() / mask.sum()
            assert found.active_share(len(tokens)) == mask.mean()
        once = {name: found.predicted.copy() for name, found in neuron_counts(model.memory).items()}
        model.cells.clear()
        for position, token in enumerate(tokens):
            bits(model, [token], position)
        for name, found in neuron_counts(model.memory).items():
            assert (found.predicted == 2 * once[name]).all()
            found.clear()
            assert not any(c.any() for c in (found.predicted, found.fired, found.hits))


def test_dense_blocks_are_not_counted(tmp_path):
    """Dense blocks are not counted, nor is the measurement of "auto"."""
    path = UNEVEN.write(tmp_path / "small.gguf")
    with loaded(path, sparse="auto", passes=(count_neurons,)) as model:
        assert list(neuron_counts(model.memory)) == ["blk.1"]
        assert not neuron_counts(model.memory)["blk.1"].fired.any()
    with loaded(path, sparse="off", passes=(count_neurons,)) as model:
        assert neuron_counts(model.memory) == {}
