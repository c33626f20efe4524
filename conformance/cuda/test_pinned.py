"""Asynchronous copies to and from a GPU: stand-ins for CuPy's streams and events that do nothing
until they are waited for."""

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kernels.cuda.runtime import pinned
from kernels.cuda.runtime.pinned import Pinned
from reference.op import Array

PIECE, PIECES = 64, 4


class Stream:
    """Pending copies, of which `done` have been made."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, int]] = []
        self.done = 0

    def copy(self, kind: str, target: int, source: int, size: int) -> None:
        assert kind in ("HostToDevice", "DeviceToHost")
        self.asked.append((target, source, size))

    def until(self, count: int) -> None:
        for target, source, size in self.asked[self.done : count]:
            ctypes.memmove(target, source, size)
        self.done = max(self.done, count)


class Event:
    def __init__(self, disable_timing: bool) -> None:
        assert disable_timing
        self.synchronize: Callable[[], None] = lambda: None

    def record(self, stream: Stream) -> None:
        at = len(stream.asked)
        self.synchronize = lambda: stream.until(at)


class Memory:
    def __init__(self, size: int) -> None:
        self.own = np.full(size, 0xEE, np.uint8)
        self.ptr = self.own.ctypes.data


@pytest.fixture(name="over")
def _over(monkeypatch) -> tuple[Stream, Pinned]:
    monkeypatch.setattr(pinned, "PIECE", PIECE)
    monkeypatch.setattr(pinned, "PIECES", PIECES)
    stream = Stream()
    cupy: Any = SimpleNamespace(cuda=SimpleNamespace(alloc_pinned_memory=Memory, Event=Event))
    return stream, Pinned(cupy, stream, stream.copy)


def drawn(rng: np.random.Generator, size: int) -> Array:
    return rng.integers(0, 256, size, np.uint8)


@pytest.mark.parametrize("size", [1, PIECE, PIECE + 1, 9 * PIECE + 5])
def test_arrays_may_change_after_write_returns(size, over):
    """Copies have the old values, however late they are made; they are as few as possible."""
    stream, there = over
    array, target = drawn(np.random.default_rng(size), size), Memory(size)
    expected = array.copy()
    there.write(target.ptr, array)
    array[:] = 0
    assert stream.done == max(0, len(stream.asked) - PIECES)  # waits for a piece only if necessary
    stream.until(len(stream.asked))
    assert np.array_equal(target.own, expected)


def test_ask_waits_only_for_earlier_copies(over):
    """A step's answer is available while the next one's copies are pending."""
    stream, there = over
    rng, place = np.random.default_rng(1), Memory(16)
    first, second = drawn(rng, 16), drawn(rng, 16)
    there.write(place.ptr, first)
    answers = [there.ask(place.ptr, 16)]
    there.write(place.ptr, second)
    answers.append(there.ask(place.ptr, 16))
    assert np.array_equal(answers[0](), first)
    assert stream.done == 2
    assert np.array_equal(answers[1](), second)
    assert np.array_equal(answers[0](), first)
