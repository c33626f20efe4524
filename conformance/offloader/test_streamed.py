"""Weights that come from disk while a step runs give the bits of weights in memory.

The laws of dense models' bits (support/bit_laws.py) hold for streamed ones, and the least memory,
all of it and whatever lies between give the same.
"""

import time

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
    on,
    packed_of,
    streamed_subject,
    truth_of,
    wanted,
    write,
)
from conformance.support.disks import Disk, healthy, slow
from conformance.support.small_families import SmallFalcon, SmallGPT2, SmallNeoX, SmallOPT
from conformance.support.small_models import Small
from engine.compile.plan import turns

pytestmark = pytest.mark.usefixtures("in_time")
K_QUANTS = Small(format="Q4_K", finer="Q6_K", hidden=256, heads=8, head_dim=32, ffn=256)
MODELS = {
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
each_model = pytest.mark.parametrize("small", MODELS.values(), ids=MODELS)


@pytest.fixture(params=[("Q4_K and Q6_K", 0.0), ("F16, tied", 0.5)], scope="module")
def subject(request, tmp_path_factory):
    name, share = request.param
    path = MODELS[name].write(tmp_path_factory.mktemp("streamed") / "small.gguf")
    with streamed_subject(path, share) as found:
        assert found.model.offload.stream.names
        yield found


@each_model
def test_every_budget_gives_the_bits_of_no_budget(small, tmp_path):
    """From the least that works to all in memory, with one, two and three threads."""
    path = small.write(tmp_path / "small.gguf")
    truth = truth_of(path)
    wants, streamed = wanted(path), set()
    assert wants.least < wants.all
    for i, budget in enumerate(wants.budgets(6)):
        with budgeted(path, budget, threads=1 + i % 3) as model:
            streamed.add(len(model.offload.stream.names))
            assert bits(model) == truth
            assert bits(model) == truth
            before, end = turns(model.plan.stages, model.offload.stream)
            assert sum(map(len, before)) == len(model.offload.stream.names)
            assert len(end) == bool(model.offload.stream.names)
    assert 0 in streamed
    assert len(streamed) > 2


@each_model
def test_packed_or_not(small, tmp_path):
    """Kernels that take the file's own rows, which are kept on disk as they are."""
    path = small.write(tmp_path / "small.gguf")
    truth = truth_of(path, variant="scalar")
    wants = wanted(path, variant="scalar")
    for budget in (wants.least, (wants.least + wants.all) // 2):
        with budgeted(path, budget, variant="scalar", threads=2) as model:
            assert bits(model) == truth


def test_a_second_load_reads_what_the_first_packed(tmp_path):
    """One file for a model at whatever budget, not written again."""
    path = K_QUANTS.write(tmp_path / "small.gguf")
    wants = wanted(path)
    first = packed_of(path).stat()
    for budget in wants.budgets(2):
        with budgeted(path, budget) as model:
            bits(model)
    second = packed_of(path).stat()
    assert (first.st_ino, first.st_mtime_ns) == (second.st_ino, second.st_mtime_ns)


# What a step within a budget costs beside its reads


@pytest.fixture(params=KINDS)
def path(request, tmp_path):
    return write(request.param, tmp_path / "small.gguf")


@pytest.fixture(params=[1, 2])
def model(request, path):
    with budgeted(path, wanted(path).least, threads=request.param) as model:
        yield model


def test_a_decode_step_allocates_nothing(model):
    """As with weights in memory: no array, and of Python's heap only what one call takes."""
    _nrt_python.memsys_enable_stats()
    for i in range(4):
        model.step([3 + i], [i], [(0,)], [0])
    allocations(model)
    assert allocations(model) <= (1024, 0)
    assert model.offload.readers.fault is None


@pytest.mark.parametrize("threads", [1, 3])
def test_waiting_takes_no_time(path, threads):
    """While a disk makes a step take a second, threads sleep."""
    disk = Disk(healthy)
    with on(disk, path, threads=threads) as model:
        model.step([3], [0], [(0,)], [0])
        before = model.offload.readers.statistics.bytes
        model.step([4], [1], [(0,)], [0])
        disk.answer = slow(max(1, model.offload.readers.statistics.bytes - before))
        began, busy = time.monotonic(), time.process_time()
        model.step([4], [2], [(0,)], [0])
        taken, busy = time.monotonic() - began, time.process_time() - busy
    assert taken > 0.3
    assert busy < taken / 4
