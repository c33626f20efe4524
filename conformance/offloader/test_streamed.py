"""Weights and neurons streamed from disk give the bits of weights in memory.

The laws of bit identity (support/bit_laws.py) hold for streamed models, and the minimum of memory,
all of it and any budget between give the same; so do pinned neurons, in any layout on disk.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from numba.core.runtime import _nrt_python

from conformance.support.allocations import allocations
from conformance.support.bit_laws import (  # noqa: F401 - laws, of this file's subject
    Subject,
    test_batch_limit,
    test_batched_or_alone,
    test_chunks,
    test_copied_prefix,
    test_fragmented_cache,
    test_removed_and_evaluated_anew,
    test_steps_repeat,
    test_threads,
    test_tree_of_tokens,
)
from conformance.support.budgets import (
    KINDS,
    bits,
    budgeted,
    bundled_of,
    neurons_of,
    on,
    packed_of,
    pinned,
    statistics_of,
    streamed_subject,
    truth_of,
    wanted,
    write,
)
from conformance.support.depth import DEEP
from conformance.support.files.disks import Disk, healthy, slow
from conformance.support.models.small_families import (
    QUANTISED,
    SUBJECTS,
    SmallFalcon,
    SmallGPT2,
    SmallGptOss,
    SmallNeoX,
    SmallOPT,
    sparse,
)
from conformance.support.models.small_models import Small, Tensors, tampered
from conformance.support.models.sparse_files import SMALL_MODELS, SmallSparse
from engine.compile.plan import turns
from engine.model import Model
from kernels.cpu.runtime.neuron_window import slots_needed
from reference.formats import FORMATS
from reference.models.transformer import Weight
from reference.op import Array

pytestmark = pytest.mark.usefixtures("timeout")
EVERY, NONE = -1e30, 1e30


@dataclass(frozen=True, slots=True)
class Streamed:
    """How a model is written; whether it `skips` neurons, the most active of which are pinned with
    `pins`; or `routes` tokens to experts."""

    write: Callable[[Path], Path]
    skips: bool = False
    pins: bool = False
    routes: bool = False

    def options(self, path: Path) -> dict[str, Any]:
        counts = path.with_name("counts.npz")
        return {"activation": statistics_of(path, counts)} if self.pins else {}


K_QUANTS = Small(format="Q4_K", finer="Q6_K", hidden=256, heads=8, head_dim=32, ffn=256)
TWO = replace(SMALL_MODELS["Q4_K"], blocks=2, ranks=(64, 64), finer="Q6_K")
BAMBOO = SmallSparse(format="F16", architecture="bamboo", activation="drelu")
PREDICTED = {"falcon": SmallFalcon(two_norms=True), "opt": SmallOPT()}  # by what we make up
DENSE: dict[str, Small] = {
    "F32": Small(seed=3),
    "F16, odd sizes": Small(hidden=67, heads=6, kv_heads=2, head_dim=10, ffn=31, format="F16"),
    "F16, tied": Small(format="F16", tied=True, ffn=512),
    "BF16": Small(format="BF16", blocks=3),
    "Q8_0, biases": Small(format="Q8_0", biases=True, kv_heads=4),
    "Q4_0, one large": Small(format="Q4_0", vocab=2000),
    "Q4_K and Q6_K": K_QUANTS,
    "falcon": SmallFalcon(two_norms=True, ffn=256, format="F16"),
    "falcon, untied": SmallFalcon(kv_heads=1, tied=False),
    "opt": SmallOPT(ffn=192, format="Q8_0"),
    "gptneox": SmallNeoX(ffn=256, format="F16"),
    "mpt": SmallGPT2(architecture="mpt", biases=True),
}
# Of them one of each width of a row; the others' kernels that take it are compiled for this alone.
AS_THEY_ARE = ("F16, odd sizes", "Q8_0, biases", "Q4_K and Q6_K", "falcon")
SKIPPING: dict[str, Callable[[Path], Path]] = {
    **{f: SMALL_MODELS[f].write for f in ("F32", "F16", "Q8_0", "Q4_0")},
    "Q4_K": replace(TWO, finer="").write,
    "BF16, tied": SmallSparse(format="BF16", predictor="F16", tied=True, blocks=3,
                              ranks=(32, 32, 64), shares=(0.1, 0.9, 0.4)).write,
    "Q4_K and Q6_K": TWO.write,
    "bamboo": lambda path: BAMBOO.write(path, attention__layer_norm_rms_epsilon=1e-5),
    **{name: partial(sparse, small) for name, small in PREDICTED.items()},
}  # fmt: skip
PINNING: dict[str, SmallSparse] = {
    "F16": SmallSparse(format="F16", seed=2, ffn=256, blocks=3, ranks=(32, 64, 64),
                       shares=(0.3,) * 3),
    "Q4_0": SmallSparse(format="Q4_0", seed=4, ffn=224),
    "Q4_K": replace(TWO, finer=""),
}  # fmt: skip
EXPERTS: dict[str, Small] = {
    "odd sizes": SUBJECTS["Qwen 2, experts"],
    "Q4_0": QUANTISED["Q4_0"][6],
    "latent attention": SUBJECTS["DeepSeek-V2"],
    "biases": SmallGptOss(format="MXFP4", seed=1),
}
NEURONS = {
    **{f"neurons, {name}": Streamed(write, True) for name, write in SKIPPING.items()},
    **{f"pinned, {name}": Streamed(small.write, True, True) for name, small in PINNING.items()},
}
MODELS = {
    **{name: Streamed(small.write) for name, small in DENSE.items()},
    **NEURONS,
    **{f"experts, {n}": Streamed(small.write, routes=True) for n, small in EXPERTS.items()},
}


def each_streamed(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("small", [MODELS[name] for name in names], ids=names)


@pytest.fixture(
    params=[
        ("Q4_K and Q6_K", 0.0),
        ("F16, tied", 0.5),
        ("neurons, Q4_0", 0.0),
        ("neurons, bamboo", 0.0),
        ("experts, Q4_0", 0.0),
    ],
    scope="module",
)
def subject(request, tmp_path_factory):
    """With the minimum of memory, or half of what all weights take in addition."""
    name, share = request.param
    path = MODELS[name].write(tmp_path_factory.mktemp("streamed") / "small.gguf")
    with streamed_subject(path, share, sparse="on" if MODELS[name].skips else "auto") as found:
        assert found.model.offload.stream.names
        assert bool(found.model.offload.neurons) == (MODELS[name].skips or MODELS[name].routes)
        yield found


def misses(model: Model) -> int:
    """Neurons that were read."""
    return int(neurons_of(model).window.state.misses.sum()) if model.offload.neurons else 0


@each_streamed(*MODELS)
def test_any_budget_changes_no_bit(small, tmp_path):
    """From the minimum to all in memory, with one, two and three threads; twice, since the second
    run finds the first one's window. As many neurons as possible are pinned, and stay in place."""
    path = small.write(tmp_path / "small.gguf")
    truth = truth_of(path, sparse="on" if small.skips else "auto")
    wants, options, held = wanted(path), small.options(path), []
    assert wants.least < wants.all
    for i, budget in enumerate(wants.budgets(6)):
        with budgeted(path, budget, threads=1 + i % 3, **options) as model:
            stays = pinned(model)
            assert bits(model) == truth
            once = misses(model)
            assert bits(model) == truth
            twice = misses(model)
            assert pinned(model) == stays
            stream, neurons = model.offload.stream, model.offload.neurons
            before, end = turns(model.plan.stages, stream)
            assert sum(map(len, before)) == len(stream.names)
            assert len(end) == bool(stream.names)
            held.append((-len(stream.names), neurons.kept_share if neurons else 1))
            assert bool(neurons) == (small.skips or small.routes)
            assert model.offload.resident + (neurons.pool.nbytes if neurons else 0) <= budget
            many = sum(map(len, stays))
            if small.pins:
                s = neurons.window.state
                assert s.pinned.tolist() == [len(slots) for slots in stays]
                assert slots_needed(neurons.window.neurons, s.quota, s.pinned) <= len(s.owner)
                assert any(f"the {many:,} most active are pinned" in n for n in model.notes)
    assert held[-1] == (0, 1)
    assert len(set(held)) > 2
    assert once == twice
    assert (many > 0) == small.pins


@each_streamed(*(DENSE if DEEP else AS_THEY_ARE), "experts, Q4_0")
def test_unpacked_rows_are_streamed(small, tmp_path):
    """Kernels that read the file's own rows stream them from there, unpacked."""
    path = small.write(tmp_path / "small.gguf")
    truth = truth_of(path, variant="scalar")
    wants = wanted(path, variant="scalar")
    for budget in (wants.least, (wants.least + wants.all) // 2):
        with budgeted(path, budget, variant="scalar", threads=2) as model:
            assert bits(model) == truth


@each_streamed(*NEURONS)
def test_any_layout_on_disk_changes_no_bit(small, tmp_path):
    """Adjacent, each matrix by itself, and bundled in the model's own file; a model's statistics
    are valid for its bundled file."""
    path, bundled = small.write(tmp_path / "small.gguf"), tmp_path / "bundled.gguf"
    options = small.options(path)
    bundled_of(path, bundled)
    truth = truth_of(path, sparse="on")
    assert truth_of(bundled, sparse="on") == truth
    for source, several in ((path, True), (path, False), (bundled, True)):
        wants = wanted(source, neuron_bundles=several)
        budget = (wants.least + wants.all) // 2 if small.pins else wants.least
        with budgeted(source, budget, neuron_bundles=several, threads=2, **options) as model:
            sections = {len(s.sections) for s in neurons_of(model).sources.values()}
            assert (sections == {1}) == several
            assert bits(model) == truth
            assert any(pinned(model)) == small.pins


@pytest.mark.parametrize("window", [0, 1, 3, None])
@each_streamed("neurons, F16", "neurons, Q4_K and Q6_K", "neurons, opt")
def test_any_window_changes_no_bit(small, window, tmp_path):
    """However long unused neurons stay, with room for none and for all."""
    path = small.write(tmp_path / "small.gguf")
    truth, wants = truth_of(path, sparse="on"), wanted(path)
    read = []
    for budget in (wants.least, wants.all):
        with budgeted(path, budget, neuron_window=window, threads=2) as model:
            assert bits(model) == truth
            read.append(misses(model))
    assert read[1] <= read[0]


@each_streamed(*(f"neurons, {name}" for name in SKIPPING))
@pytest.mark.parametrize("union", [False, True], ids=["", "union"])
def test_any_threshold_changes_no_bit(small, union, tmp_path):
    """Thresholds that predict all neurons or none, and changes between steps."""
    path = small.write(tmp_path / "small.gguf")
    least = wanted(path).least
    for first, second in ((EVERY, NONE), (NONE, 0.5), (0.0, EVERY)):
        options = {"threshold": first, "union": union, "sparse": "on"}
        with budgeted(path, 0, **options) as model:
            truth = bits(model, second)
        with budgeted(path, least, threads=2, **options) as model:
            assert bits(model, second) == truth


def test_dense_models_stream_whole_matrices(tmp_path):
    """Its matrices are streamed whole, out of bundles too."""
    path, bundled = TWO.write(tmp_path / "small.gguf"), tmp_path / "bundled.gguf"
    bundled_of(path, bundled)
    truth = truth_of(path, sparse="off")
    for source in (path, bundled):
        with budgeted(source, wanted(source, sparse="off").least, sparse="off") as model:
            assert model.offload.neurons is None
            assert bits(model) == truth


def with_one_dense_block(weights: dict[str, Weight], norms: dict[str, Array]) -> Tensors:
    """Up of the first block in a format without a sparse kernel."""
    name = "blk.0.ffn_up.weight"
    values = FORMATS["Q4_K"].dequantise(weights[name].data)
    return {**weights, name: Weight(FORMATS["Q6_K"].quantise(values), "Q6_K")}, norms


@pytest.mark.parametrize("bundled", [False, True], ids=["", "bundled"])
def test_dense_blocks_beside_sparse_ones(bundled, tmp_path, monkeypatch):
    """Their matrices are streamed whole next to other blocks' neurons."""
    monkeypatch.setattr("engine.load.dense_where_faster", lambda config, *_: (config, []))
    path = tampered(TWO, with_one_dense_block).write(tmp_path / "small.gguf")
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
            assert any("Q6_K, which has no sparse kernels" in note for note in model.notes)
            assert bits(model) == truth


def test_packed_weights_are_reused(tmp_path):
    """One file for a model at any budget, not written again."""
    path = K_QUANTS.write(tmp_path / "small.gguf")
    wants = wanted(path)
    first = packed_of(path).stat()
    for budget in wants.budgets(2):
        with budgeted(path, budget) as model:
            bits(model)
    second = packed_of(path).stat()
    assert (first.st_ino, first.st_mtime_ns) == (second.st_ino, second.st_mtime_ns)


@pytest.fixture(params=KINDS)
def path(request, tmp_path):
    return write(request.param, tmp_path / "small.gguf")


@pytest.fixture(params=[1, 2])
def model(request, path):
    with budgeted(path, wanted(path).least, threads=request.param) as model:
        yield model


def test_a_decode_step_allocates_nothing(model):
    """As with weights in memory, a step creates no array, and few Python objects."""
    _nrt_python.memsys_enable_stats()
    for i in range(4):
        model.step([3 + i], [i], [(0,)], [0])
    allocations(model)
    assert allocations(model) <= (1024, 0)
    assert model.offload.readers.fault is None


def test_waiting_for_the_disk_takes_no_cpu_time(path):
    """While a disk makes a step take a second, threads sleep."""
    disk = Disk(healthy)
    with on(disk, path, threads=3) as model:
        model.step([3], [0], [(0,)], [0])
        before = model.offload.readers.statistics.bytes
        model.step([4], [1], [(0,)], [0])
        disk.answer = slow(max(1, model.offload.readers.statistics.bytes - before))
        began, busy = time.monotonic(), time.process_time()
        model.step([4], [2], [(0,)], [0])
        taken, busy = time.monotonic() - began, time.process_time() - busy
    assert taken > 0.3
    assert busy < taken / 4
