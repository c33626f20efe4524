"""Which weights stay in memory, and how the others share a ring buffer."""

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.compile.packed_weights import PAGE, paged
from engine.offload.budget import VARIES, Budget, parse_bytes
from engine.offload.residency import Ring, divide, least, ring

SIZES = st.lists(st.integers(1, 40 * PAGE), min_size=1, max_size=24).map(
    lambda sizes: {f"w{i}": size for i, size in enumerate(sizes)}
)


def simulate_steps(found: Ring, sizes: dict[str, int], steps: int) -> None:
    """Steps in which everything is read as early as possible: no byte that is still needed is
    overwritten, and everything arrives in time."""
    count = len(found.names)
    pages = {
        name: range(at, at + sizes[name], PAGE)
        for name, at in zip(found.names, found.offsets, strict=True)
    }
    ahead = [(step, j, name) for step in range(steps + 1) for j, name in enumerate(found.names)]
    memory: dict[int, str] = {}
    read = used = 0
    while used < steps * count:
        while read < len(ahead):
            step, j, name = ahead[read]
            if used < step * count + found.after[j]:
                break
            memory |= dict.fromkeys(pages[name], f"{name} {step}")
            read += 1
        step, j, name = ahead[used]
        assert read > used, f"{name} of step {step} never comes"
        assert all(memory[page] == f"{name} {step}" for page in pages[name])
        used += 1


@given(sizes=SIZES, held=st.integers(1, 4))
def test_the_ring_never_overwrites_unread_bytes(sizes, held):
    sizes = {name: paged(size) for name, size in sizes.items()}
    found = ring(sizes, held * max(sizes.values()))
    ends = [at + size for at, size in zip(found.offsets, sizes.values(), strict=True)]
    assert max(ends) <= found.size
    simulate_steps(found, sizes, 4)


@given(sizes=SIZES, share=st.floats(0, 1.2))
def test_a_division_fits_its_budget(sizes, share):
    total = sum(map(paged, sizes.values()))
    room = int(total * share)
    found = divide(sizes, room)
    assert (found is None) == (room < least(sizes))
    if found is None:
        return
    kept = sum(paged(sizes[name]) for name in found.resident)
    assert kept + found.ring.size <= room
    assert [n for n in sizes if n in found.resident] == list(found.resident)
    assert [n for n in sizes if n not in found.resident] == list(found.ring.names)
    if room >= total:
        assert not found.ring.names


@given(count=st.integers(8, 64), share=st.floats(0.3, 0.9))
def test_residents_are_spread_evenly_and_fill_the_budget(count, share):
    sizes = {f"w{i}": PAGE for i in range(count)}
    room = int(count * share) * PAGE
    found = divide(sizes, room)
    assert len(found.resident) * PAGE + found.ring.size == room
    where = [i for i, name in enumerate(sizes) if name in found.resident]
    gaps = [b - a for a, b in zip(where, islice(where, 1, None), strict=False)]
    if gaps:
        assert max(gaps) <= -(-count // len(where)) + 1


def test_large_matrices_are_resident_where_cheaper():
    """A vocabulary's matrix among blocks' ones: a ring for it would be larger than itself."""
    sizes = {**{f"w{i}": 8 * PAGE for i in range(20)}, "output": 100 * PAGE}
    found = divide(sizes, 150 * PAGE)
    assert "output" in found.resident
    assert found.ring.size == 3 * 8 * PAGE


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("600MiB", 600 * 2**20), ("1.5 GB", 1_500_000_000), (4096, 4096), ("2gib", 2**31)],
)
def test_sizes_are_parsed(text, wanted):
    assert parse_bytes(text) == wanted


def test_too_small_budgets_name_the_minimum():
    budget = Budget(total=100 * 2**20, program=90 * 2**20, cache=2**20, step=1)
    assert budget.room == 9 * 2**20 - 1
    message = str(budget.refuse(20 * 2**20))
    assert "100 MiB is too small" in message
    assert f"{91 + 1 + 20 + VARIES // 2**20} MiB" in message
