"""Which weights are resident, and how the others rotate through a ring buffer.

A step reads its weights in the same order every time, so the streamed ones form one endless
sequence: read ahead as far as the ring has room, also from one step into the next. Every streamed
weight has a fixed place in the ring, so argument blocks never change.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from engine.compile.packed_weights import paged

# The ring holds this many of the largest streamed weight: one in use, and others being
# read meanwhile.
HELD = 3

Sizes = Mapping[str, int]  # bytes of each weight, in the order of a step


@dataclass(frozen=True, slots=True)
class Ring:
    """Streamed weights in a ring of `size` bytes, in the order of a step.

    `offsets`: where each begins. `after`: how many weights must have been used before it may be
    read, counted from the beginning of its own step; 0 or less: of the previous step.
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
    """The least bytes with which a step can run: a ring for one weight at a time, and larger
    weights resident."""
    return min((_above(sizes, most) + most for most in _steps(sizes)), default=0)


def divide(sizes: Sizes, room: int) -> Residency | None:
    """The division with the fewest streamed bytes in `room` bytes; None if nothing fits.

    The largest weights are resident where that shrinks the ring enough to keep more of the others;
    of the others as many as fit, spread evenly, so that neither the disk nor the threads wait long
    for each other.
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
    """Candidate limits on the largest streamed weight, the largest first."""
    return sorted({paged(size) for size in sizes.values()}, reverse=True)


def _above(sizes: Sizes, most: int) -> int:
    return sum(size for size in map(paged, sizes.values()) if size > most)


def _spread(sizes: Sizes, room: int) -> set[str]:
    """Weights of at most `room` bytes in all, as evenly spaced as their sizes allow."""
    total = sum(map(paged, sizes.values()))
    chosen: set[str] = set()
    owed, left = 0.0, room
    for name, size in sizes.items():
        owed += paged(size) * min(1.0, room / total)
        if paged(size) <= min(owed, left):
            chosen.add(name)
            owed -= paged(size)
            left -= paged(size)
    for name, size in sizes.items():  # a rest from rounding
        if name not in chosen and paged(size) <= left:
            chosen.add(name)
            left -= paged(size)
    return chosen


def ring(sizes: Sizes, size: int) -> Ring:
    """Consecutive places for weights, from the beginning again where the next would not fit."""
    offsets: list[int] = []
    end = 0
    for weight in map(paged, sizes.values()):
        begin = end if end + weight <= size else 0
        offsets.append(begin)
        end = begin + weight
    spans = [(at, at + paged(w)) for at, w in zip(offsets, sizes.values(), strict=True)]
    return Ring(tuple(sizes), tuple(offsets), tuple(_after(spans)), size)


def _after(spans: list[tuple[int, int]]) -> list[int]:
    """For each weight: one more than the index of the last one before it in the same memory; its
    own place was its own a step ago."""
    count, found = len(spans), []
    for j, (begin, end) in enumerate(spans):
        back = next(
            back
            for back in range(1, count + 1)
            if spans[(j - back) % count][0] < end and begin < spans[(j - back) % count][1]
        )
        found.append(j - back + 1)
    return found
