"""Exact budgets: `ram_budget` covers only the weights, not the rest of this process."""

import functools
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from conformance.support.bit_laws import ROOM, Subject, subject_of
from conformance.support.files.disks import Disk
from conformance.support.models.small_families import SmallMixture
from conformance.support.models.small_models import Small
from conformance.support.models.sparse_files import SmallSparse
from conformance.support.models.steps import loaded
from engine.compile import packed_weights
from engine.compile.packed_weights import paged
from engine.gguf.file import GGUFFile
from engine.model import Model
from engine.offload import neurons, offload, residency
from engine.offload.budget import Budget
from engine.offload.bundling import bundle
from engine.offload.neurons import Neurons, Source
from engine.placement import Activations, statistics
from kernels.cpu.runtime.io_pool import IOPool
from kernels.cpu.runtime.neuron_window import NOWHERE

TEXT = np.random.default_rng(5).integers(0, 64, 24).tolist()
PROMPT = 13  # prompt tokens in one step


@contextmanager
def to_the_byte() -> Iterator[None]:
    """Make budgets cover only the weights."""
    with patch.object(Budget, "now", lambda total, *_: Budget(total, 0, 0, 0)):
        yield


@dataclass(frozen=True, slots=True)
class Wants:
    """Bytes of a model's weights: the minimum with which it runs, and all."""

    least: int
    all: int

    def budgets(self, count: int) -> list[int]:
        """`count` budgets from the minimum to all: evenly spaced, and just below both."""
        even = np.linspace(self.least, self.all, count).astype(int).tolist()
        return sorted({*even, self.all - 1})


def wanted(path: Path, **options: Any) -> Wants:
    """For a model with these options."""
    shared = offload.shared
    found: list[tuple[Mapping[str, int], Mapping[int, Source]]] = []

    def noting(budget: Budget, order: Mapping[str, int], sources: Mapping[int, Source]) -> Any:
        found.append((order, sources))
        return shared(budget, order, sources)

    with patch.object(offload, "shared", noting), budgeted(path, 2**40, **options):
        order, sources = found[-1]
    rows = [source.neurons for source in sources.values()]
    pool = neurons.least(sources) if sources else 0
    slot = pool // (max(rows) + 1) if sources else 0
    every = sum(map(paged, order.values())) + slot * (sum(rows) + bool(rows))
    return Wants(residency.least(order) + pool, every)


@contextmanager
def budgeted(path: Path, budget: int, **options: Any) -> Iterator[Model]:
    """A model with this budget in bytes for weights; 0: all in memory without a budget."""
    options = {"context": 64, **options, "ram_budget": budget}
    with ExitStack() as stack:
        with to_the_byte():
            model = stack.enter_context(loaded(path, **options))
        yield model


@contextmanager
def streamed_subject(path: Path, share: float, **options: Any) -> Iterator[Subject]:
    """A subject of bit_laws.py with the resident model's logits as the truth, with the minimum of
    memory and this share of the rest of its weights."""
    found = subject_of(path, {**ROOM, **options})
    found.model.close()
    wants = wanted(path, **options)
    budget = int(wants.least + share * (wants.all - wants.least))
    with to_the_byte():
        found = replace(found, options={**found.options, "ram_budget": budget})
        found = replace(found, model=found.with_options())
        try:
            yield found
        finally:
            found.model.close()


def bits(model: Model, threshold: float | None = None) -> list[bytes]:
    """The logits of a prompt, for all its tokens, and of one token after the other; the second half
    of them with another threshold, if one is given."""
    model.cells.clear()
    found = []
    where = range(PROMPT)
    found.append(model.step(TEXT[:PROMPT], where, [(0,)] * PROMPT, where).tobytes())
    for i in range(PROMPT, len(TEXT)):
        if threshold is not None and 2 * (i - PROMPT) >= len(TEXT) - PROMPT:
            model.set_threshold(threshold)
        found.append(model.step([TEXT[i]], [i], [(0,)], [0]).tobytes())
    return found


def truth_of(path: Path, **options: Any) -> list[bytes]:
    """The resident model's bits."""
    with budgeted(path, 0, **options) as model:
        return bits(model)


def neurons_of(model: Model) -> Neurons:
    """The neurons that the model loads one by one."""
    assert model.offload
    assert model.offload.neurons
    return model.offload.neurons


def pinned(model: Model) -> list[list[int]]:
    """The slots of each block's pinned neurons, which are in no ring."""
    if not (model.offload and model.offload.neurons):
        return []
    window = model.offload.neurons.window
    return [
        [slot for slot in window.slots_of(b) if slot != NOWHERE and window.state.after[slot] == -1]
        for b in range(len(window.neurons))
    ]


def statistics_of(path: Path, out: Path) -> Path:
    """Activation statistics of this model, with few neurons that are active often."""
    rng = np.random.default_rng(0)
    with GGUFFile(path) as file:
        ups = [t for name, t in file.tensors.items() if name.endswith("ffn_up.weight")]
        counts = tuple(rng.binomial(1000, rng.beta(0.3, 3, up.dims[0])) for up in ups)
        statistics.write(out, Activations(counts, 1000, statistics.identity(file)))
    return out


def bundled_of(path: Path, out: Path) -> Path:
    """The file with its neurons in bundles."""
    with GGUFFile(path) as file:
        bundle(file, out)
    return out


def packed_of(path: Path, cache: Path | None = None) -> Path:
    """The path of a model's packed weights in this cache folder."""
    name = hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:32]
    return (cache or packed_weights.cache_folder()) / "packed" / f"{name}.packed"


DENSE = Small(format="F16", hidden=128, heads=8, ffn=384)
SPARSE = SmallSparse(format="F16", seed=2, ffn=256)
MIXTURE = SmallMixture(format="F16", hidden=128, heads=8, width=128, experts=8, used=2)
WRITTEN: Mapping[str, Small] = {"dense": DENSE, "sparse": SPARSE, "experts": MIXTURE}
KINDS = (*WRITTEN, "bundled")


def write(kind: str, path: Path) -> Path:
    if kind in WRITTEN:
        return WRITTEN[kind].write(path)
    return bundled_of(SPARSE.write(path.with_name("plain.gguf")), path)


@contextmanager
def on(disk: Disk, path: Path, budget: int = 0, **options: Any) -> Iterator[Model]:
    """A model with a budget, by default the minimum, read from this disk."""
    budget = budget or wanted(path, **options).least
    readers = functools.partial(IOPool, preadv=disk.address)
    with patch.object(offload, "IOPool", readers), budgeted(path, budget, **options) as model:
        yield model
