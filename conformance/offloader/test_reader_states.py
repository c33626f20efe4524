"""Readers in any order of use: posts, waits, disks that break and are repaired, resets."""

import errno

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from numpy.testing import assert_array_equal

from conformance.offloader.conftest import SIZE
from conformance.support.depth import DEEP
from conformance.support.disks import Disk, healthy, in_turn
from kernels.cpu.runtime.readers import File, Readers, iovecs_of

PASSING = {"short": 600, "EINTR": -errno.EINTR, "EAGAIN": -errno.EAGAIN}
LASTING = {"EIO": -errno.EIO, "ENXIO": -errno.ENXIO, "nothing": 0}
COUNTERS = 3


class Use(RuleBasedStateMachine):
    """What was posted since the last reset, and whether the disk may have failed since."""

    path, truth = "", np.zeros(0, np.uint8)

    @initialize(
        capacity=st.sampled_from([1, 2, 16]),
        n_readers=st.sampled_from([1, 2, 8]),
        alignment=st.sampled_from([1, 512]),
    )
    def open(self, capacity, n_readers, alignment):
        self.source = open(self.path, "rb")  # noqa: PTH123, SIM115
        self.disk = Disk(healthy)
        file = File("weights.bin", self.source.fileno(), alignment)
        self.readers = Readers([file], n_readers, 1, COUNTERS, capacity, self.disk.address)
        self.unit, self.broken = alignment, False
        self.posted = [[] for _ in range(COUNTERS)]

    @rule(
        place=st.integers(0, SIZE - 2**16), size=st.integers(0, 20_000), cut=st.integers(0, 20_000),
        counter=st.integers(0, COUNTERS - 1), times=st.integers(1, 5),
    )  # fmt: skip
    def post(self, place, size, cut, counter, times):
        place, size = place // self.unit * self.unit, size // self.unit * self.unit
        cut = min(cut // self.unit * self.unit, size)
        for _ in range(times):
            buffer = np.full(size, 0x5A, np.uint8)
            iovecs = iovecs_of([buffer[:cut], buffer[cut:]])
            if self.readers.post(0, place, iovecs, size, counter):
                self.posted[counter].append((place, buffer, iovecs))
            else:
                assert self.broken
                assert self.readers.fault

    @rule(counter=st.integers(0, COUNTERS - 1))
    def wait(self, counter):
        if self.readers.wait(counter, len(self.posted[counter])):
            for place, buffer, _ in self.posted[counter]:
                assert_array_equal(buffer, self.truth[place : place + len(buffer)])
        else:
            assert self.broken
            assert self.readers.fault
            assert self.readers.fault.startswith("weights.bin: ")

    @rule(place=st.integers(0, SIZE - 2**16), size=st.integers(0, 2000))
    def read(self, place, size):
        place, size = place // self.unit * self.unit, size // self.unit * self.unit
        buffer = np.zeros(size, np.uint8)
        told = ""
        try:
            self.readers.read(0, place, [buffer])
        except OSError as error:
            told = str(error)
        if told:
            assert self.broken
            assert told == self.readers.fault
        else:
            assert_array_equal(buffer, self.truth[place : place + size])

    @precondition(lambda self: not self.broken)
    @rule(answers=st.lists(st.sampled_from([*PASSING.values(), None]), max_size=12))
    def trouble(self, answers):
        self.disk.answer = in_turn(answers)

    @rule(answer=st.sampled_from(list(LASTING.values())))
    def fail(self, answer):
        self.disk.answer, self.broken = lambda *_: answer, True

    @rule()
    def reset(self):
        self.disk.answer, self.broken = healthy, False
        self.readers.reset()
        assert self.readers.fault is None
        assert not self.readers.counters.any()
        self.posted = [[] for _ in range(COUNTERS)]

    def teardown(self):
        if hasattr(self, "readers"):
            self.readers.close()
            self.source.close()


@pytest.mark.usefixtures("in_time")
def test_any_order_of_use(path, truth, monkeypatch):
    """Whatever happened before: bytes are right, faults are told where the disk failed and nowhere
    else, nothing hangs, and a reset makes all as new."""
    monkeypatch.setattr(Use, "path", path)
    monkeypatch.setattr(Use, "truth", truth)
    steps = settings(max_examples=1000 if DEEP else 40, stateful_step_count=40)
    run_state_machine_as_test(Use, settings=steps)
