"""Which weights stay in memory, and how the others take turns in a ring of it.

A step meets its weights in the same order every time, so what is not resident is one endless
sequence: read ahead as far as the ring has room, also from one step into the next. Every streamed
weight has a place of its own in the ring, so that argument buffers never change.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from engine.compile.packed_weights import paged

# The ring holds so many of the largest streamed weight: one that is computed with, and others that
# are read meanwhile.
HELD = 3

Sizes = Mapping[str, int]  # bytes of each weight, in the order in which a step meets them


@dataclass(frozen=True, slots=True)
class Ring:
    """Streamed weights in a ring of `size` bytes, in the order of a step.

    `offsets`: where each begins. `after`: how many weights must have been used before it may be
    read, counted from the beginning of its own step; 0 or less: of the step before.
    """

    names: tuple[str, ...]
    offsets: tuple[int, ...]
    after: tuple[int, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Residency:
    """Names of `resident` weights, and the ring of all others."""

    resident: tuple[str, ...]
    ring: Ring


def least(sizes: Sizes) -> int:
    """Bytes with which a step can be done at all: a ring for one weight at a time, and in memory
    what is larger than that."""
    return min((_above(sizes, most) + most for most in _steps(sizes)), default=0)


def divide(sizes: Sizes, room: int) -> Residency | None:
    """As few streamed bytes as fit into `room` bytes; None if nothing does.

    The largest weights are resident, where that makes the ring so much smaller that more of the
    others are; of the others so many as fit, spread evenly, so that neither the disk waits long for
    weights to be used nor the threads for weights to be read.
    """
    if sum(map(paged, sizes.values())) <= room:
        return Residency(tuple(sizes), ring({}, 0))
    best: tuple[int, Residency] | None = None
    for most in _steps(sizes):
        for held in range(HELD, 0, -1):
            left = room - _above(sizes, most) - held * most
            if left < 0:
                continue
            resident = {n for n, size in sizes.items() if paged(size) > most}
            resident |= _spread({n: s for n, s in sizes.items() if n not in resident}, left)
            streamed = {n: size for n, size in sizes.items() if n not in resident}
            cost = sum(map(paged, streamed.values()))
            if best is None or cost < best[0]:
                found = tuple(name for name in sizes if name in resident)
                best = cost, Residency(found, ring(streamed, held * most))
            break
    return best[1] if best else None


def _steps(sizes: Sizes) -> list[int]:
    """What the largest streamed weight may be, the largest first."""
    return sorted({paged(size) for size in sizes.values()}, reverse=True)


def _above(sizes: Sizes, most: int) -> int:
    return sum(size for size in map(paged, sizes.values()) if size > most)


def _spread(sizes: Sizes, room: int) -> set[str]:
    """Weights of at most `room` bytes together, as evenly as their sizes allow."""
    total = sum(map(paged, sizes.values()))
    chosen: set[str] = set()
    owed, left = 0.0, room
    for name, size in sizes.items():
        owed += paged(size) * min(1.0, room / total)
        if paged(size) <= min(owed, left):
            chosen.add(name)
            owed -= paged(size)
            left -= paged(size)
    for name, size in sizes.items():  # what rounding has left
        if name not in chosen and paged(size) <= left:
            chosen.add(name)
            left -= paged(size)
    return chosen


def ring(sizes: Sizes, size: int) -> Ring:
    """Weights one behind the other, from the beginning again where the next would not fit."""
    offsets: list[int] = []
    end = 0
    for weight in map(paged, sizes.values()):
        begin = end if end + weight <= size else 0
        offsets.append(begin)
        end = begin + weight
    spans = [(at, at + paged(w)) for at, w in zip(offsets, sizes.values(), strict=True)]
    return Ring(tuple(sizes), tuple(offsets), tuple(_after(spans)), size)


def _after(spans: list[tuple[int, int]]) -> list[int]:
    """For each weight: one more than the last one before it that has the same memory; it has been
    in its place itself a step ago."""
    count, found = len(spans), []
    for j, (begin, end) in enumerate(spans):
        back = next(
            back
            for back in range(1, count + 1)
            if spans[(j - back) % count][0] < end and begin < spans[(j - back) % count][1]
        )
        found.append(j - back + 1)
    return found
