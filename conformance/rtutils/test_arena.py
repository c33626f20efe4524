"""One arena, allocated at load, in which no two live values overlap; a step allocates nothing."""

import tracemalloc
from itertools import combinations

import numpy as np
import pytest
from numba.core.runtime import _nrt_python

from conformance.support.allocations import allocations
from conformance.support.models.small_models import Small
from conformance.support.models.steps import loaded
from engine.compile.plan import Plan

SMALL = {
    "F32": Small(),
    "tied": Small(tied=True, biases=True),
    "Q4_0": Small(format="Q4_0", biases=True),
    "Q8_0": Small(format="Q8_0", blocks=3),
    "odd sizes": Small(hidden=66, heads=3, kv_heads=1, head_dim=6, ffn=31, blocks=1),
}
LIMITS = {"one token": (1, 1), "one output": (16, 1), "as many outputs": (7, 7)}


@pytest.fixture(params=SMALL.values(), ids=SMALL.keys(), scope="module")
def small(request):
    return request.param


@pytest.fixture(params=LIMITS.values(), ids=LIMITS.keys(), scope="module")
def model(small, request, tmp_path_factory):
    path = small.write(tmp_path_factory.mktemp("arena") / "small.gguf")
    batch, outputs = request.param
    with loaded(path, context=64, batch=batch, outputs=outputs) as model:
        yield model


def lifetimes(plan: Plan) -> dict[str, tuple[int, int]]:
    """The first and the last stage that accesses each activation; logits stay alive."""
    found: dict[str, tuple[int, int]] = {}
    for i, stage in enumerate(plan.stages):
        for value in (value for call in stage for value in call.values()):
            if value.kind == "activation":
                first, _ = found.get(value.name, (i, i))
                found[value.name] = first, i
    last = plan.steps[-1].output.name
    found[last] = found[last][0], len(plan.stages)
    return found


def addresses(plan: Plan) -> dict[str, tuple[int, int]]:
    """Each activation's bytes in the arena for the largest step."""
    start = plan.arena.ctypes.data
    found = {}
    for step in plan.steps:
        for value in step.arrays.values():
            if value.kind == "activation":
                array = plan.array(value)
                begin = array.ctypes.data - start
                found[value.name] = begin, begin + array.nbytes
    return found


def test_live_values_never_overlap(model):
    """Values share bytes only if one is dead, and a barrier has passed, before the other's
    write."""
    lives, where = lifetimes(model.plan), addresses(model.plan)
    assert lives.keys() == where.keys() == model.plan.offsets.keys()
    for a, b in combinations(lives, 2):
        together = max(lives[a][0], lives[b][0]) <= min(lives[a][1], lives[b][1])
        shared = max(where[a][0], where[b][0]) < min(where[a][1], where[b][1])
        assert not (together and shared), f"{a} and {b}"


def test_values_lie_within_the_arena_on_cache_lines(model):
    """Every value is aligned to a cache line, against false sharing, and fits."""
    assert model.plan.arena.ctypes.data % 64 == 0
    for begin, end in addresses(model.plan).values():
        assert begin % 64 == 0
        assert 0 <= begin <= end <= model.plan.arena_bytes


def test_arena_is_far_smaller_than_all_values(small, model):
    """Dead values' memory is reused: the arena is a fraction of the values' sum."""
    sizes = [end - begin for begin, end in addresses(model.plan).values()]
    assert model.plan.arena_bytes < 64 * len(sizes) + sum(sizes) / (2 if small.blocks > 1 else 1)


def test_arena_does_not_grow_with_blocks(tmp_path):
    """All blocks of a model use the same memory in turn, the third like the second."""
    sizes = set()
    for blocks in (2, 3, 6):
        path = Small(blocks=blocks, format="Q8_0").write(tmp_path / f"{blocks}.gguf")
        with loaded(path, context=64, batch=16) as model:
            sizes.add(model.plan.arena_bytes)
    assert len(sizes) == 1


def test_old_activations_are_never_read(model):
    """A step reads none of an earlier step's activations: NaN there changes no bit."""
    found = []
    for byte in (0x00, 0xFF):
        model.cells.clear()
        rows = []
        for position, token in enumerate((3, 5, 8, 13)):
            model.plan.arena[:] = byte
            rows.append(model.step([token], [position], [(0,)], [0]).tobytes())
        found.append(rows)
    assert found[0] == found[1]


def test_decode_step_allocates_nothing(model):
    """Running a prepared step creates no array: nothing from Numba's runtime, and from Python only
    the few small objects of one call, for any model."""
    _nrt_python.memsys_enable_stats()
    model.cells.clear()
    model.step([3], [0], [(0,)], [0])
    allocations(model)
    assert allocations(model) <= (1024, 0)


@pytest.mark.parametrize("threads", [1, 2])
def test_decoding_leaks_no_memory(threads, tmp_path):
    """No number of steps increases memory, except the list of free cells (8 bytes each), and a
    step's own lists are small."""
    path = Small(format="Q4_0").write(tmp_path / "small.gguf")
    with loaded(path, threads=threads, context=512) as model:
        tracemalloc.start()
        for position in range(400):
            model.step([3], [position], [(0,)], [0])
            if position == 8:
                held = tracemalloc.get_traced_memory()[0]
        held_after, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert held_after - held < 8 * model.cells.capacity
        assert peak - held < 16 * 1024


def test_a_step_without_logits(model):
    """A step without wanted logits is legal, and gives none."""
    model.cells.clear()
    assert model.step([3], [0], [(0,)]).shape == (0, model.config.vocab)
    assert np.isfinite(model.step([4], [1], [(0,)], [0])).all()
