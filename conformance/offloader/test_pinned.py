"""Pinned neurons: which ones, and errors."""

import errno
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from conformance.support.budgets import bits, budgeted, on, pinned, statistics_of, truth_of, wanted
from conformance.support.files.disks import Disk, after, healthy
from conformance.support.models.small_models import Small
from conformance.support.models.sparse_files import SmallSparse
from conformance.support.program import fault
from engine.config import ModelError
from engine.gguf.file import GGUFFile
from engine.offload.disk import OffloadError
from engine.offload.neurons import rows_from
from engine.offload.pinning import hottest
from engine.placement.statistics import Activations, StatisticsError, identity, write
from kernels.cpu.formats.packing import aligned

pytestmark = pytest.mark.usefixtures("timeout")
SMALL = SmallSparse(format="F16", seed=2, ffn=256, blocks=3, ranks=(32, 64, 64), shares=(0.3,) * 3)

counted = st.lists(
    arrays(np.int64, st.integers(1, 12), elements=st.integers(0, 9) | st.just(10**12)),
    min_size=1,
    max_size=4,
)


@given(counts=counted, spare=st.integers(0, 30))
def test_the_most_active_neurons_are_pinned(counts, spare):
    """Greedily, the most active first: each is more active than the average benefit of the
    remaining slots, which can hold any one block; the next one is not, or would not leave that
    room."""
    sizes = [len(block) for block in counts]
    capacity = max(sizes) + spare
    expected: list[list[int]] = [[] for _ in counts]
    ranked = sorted((-n, b, i) for b, block in enumerate(counts) for i, n in enumerate(block))
    for many, (count, block, neuron) in enumerate(ranked):
        rest = -sum(n for n, *_ in ranked[many:])
        left = capacity - many
        added = [len(e) + (b == block) for b, e in enumerate(expected)]
        fits = sum(added) + max(n - p for n, p in zip(sizes, added, strict=True)) <= capacity
        if -count * left <= rest or not fits:
            break
        expected[block].append(neuron)
    assert hottest(counts, capacity) == [sorted(block) for block in expected]


def test_pinned_neurons_survive_a_disk_fault(tmp_path):
    """Remains of a failed read are dropped; pinned neurons are never overwritten."""
    path = SMALL.write(tmp_path / "small.gguf")
    statistics = statistics_of(path, tmp_path / "counts.npz")
    truth = truth_of(path, sparse="on")
    wants, disk = wanted(path), Disk(healthy)
    with on(disk, path, (wants.least + wants.all) // 2, activation=statistics) as model:
        before = pinned(model)
        assert sum(map(len, before)) > 20
        disk.answer = after(5, -errno.EIO)
        with pytest.raises(OffloadError):
            bits(model)
        disk.answer = healthy
        assert bits(model) == truth
        assert pinned(model) == before


def test_a_disk_fault_while_pinning(tmp_path):
    """A disk fault at load, after all other reads, is reported in one line."""
    path = SMALL.write(tmp_path / "small.gguf")
    statistics = statistics_of(path, tmp_path / "counts.npz")
    room, disk = wanted(path).all, Disk(healthy)
    with on(disk, path, room):
        calls = len(disk.calls)
    disk.answer = after(calls, -errno.EIO)
    with (
        pytest.raises(OSError, match=r"cannot be read at byte \d+: input/output error"),
        on(disk, path, room, activation=statistics),
    ):
        pass


def test_statistics_of_another_model_are_refused(tmp_path):
    """Other blocks, other neurons, other norms: one line, as for a GPU's budget."""
    path, out = SMALL.write(tmp_path / "small.gguf"), tmp_path / "counts.npz"
    with GGUFFile(path) as file:
        mine = identity(file)
    one = np.ones(SMALL.ffn, np.int64)
    for counts, model, told in (
        ((one,) * 2, mine, "they have 2 blocks, .*small.gguf has 3"),
        ((one, one, one[:-1]), mine, "block 2 has 255 neurons there, 256 in .*small.gguf"),
        ((one,) * 3, "another", "its norms are not those of .*small.gguf"),
    ):
        write(out, Activations(counts, 1, model))
        with (
            pytest.raises(StatisticsError, match=f"^the statistics are of another model: {told}$"),
            budgeted(path, 10**9, activation=out),
        ):
            pass


def test_pinning_without_sparse_blocks_is_refused(tmp_path):
    """A dense model, and a sparse one that runs dense."""
    told = r"^.*small.gguf: no block skips neurons, so none can be pinned$"
    statistics = statistics_of(SMALL.write(tmp_path / "small.gguf"), tmp_path / "counts.npz")
    with (
        pytest.raises(ModelError, match=told),
        budgeted(tmp_path / "small.gguf", 10**9, activation=statistics, sparse="off"),
    ):
        pass
    dense = Small().write(tmp_path / "dense-small.gguf")
    with pytest.raises(ModelError, match=told), budgeted(dense, 10**9, activation=statistics):
        pass


def test_the_command_reports_pinned_neurons(inside, tmp_path):
    path = SMALL.write(tmp_path / "small.gguf")
    statistics = statistics_of(path, tmp_path / "counts.npz")
    words = ("run", path, "-p", "", "-n", "2", "-c", "64", "--ram-budget", "1000GB", "--json")
    code, told, error = inside(*words, "--activation", statistics)
    assert code == 0, error
    assert any("most active are pinned" in note for note in json.loads(told)["notes"])
    line = fault(inside(*words, "--activation", tmp_path / "none.npz"))
    assert line == f"{tmp_path}/none.npz: cannot be read: no such file or directory"


@given(slots=st.integers(0, 5), stride=st.integers(1, 40), data=st.data())
def test_row_views_of_slots(slots, stride, data):
    """Each view begins with its part of every slot, is C-contiguous, and stays within the pool."""
    begin = data.draw(st.integers(0, stride - 1))
    pool = aligned((slots + 1) * stride).reshape(slots + 1, stride)
    pool[:] = np.arange(pool.size, dtype=np.uint8).reshape(pool.shape)
    view = rows_from(pool, begin)
    assert view.shape == (slots, stride)
    assert view.flags.c_contiguous
    assert np.array_equal(view[:, : stride - begin], pool[:-1, begin:])
    low, high = np.lib.array_utils.byte_bounds(pool)
    first, last = np.lib.array_utils.byte_bounds(view)
    assert low <= first <= last <= high
