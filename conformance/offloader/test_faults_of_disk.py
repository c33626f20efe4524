"""Disk errors while a model runs: retries where they make sense, otherwise one clear error, and
never a wrong token."""

import errno
import os
import signal
import time
from pathlib import Path
from unittest.mock import patch

import pytest

from conformance.offloader.conftest import sending_signals
from conformance.support import budgets
from conformance.support.files.disks import LASTING, Disk, after, healthy, slow
from engine.gguf.file import GGUFError, GGUFFile
from engine.model import Model
from engine.offload.disk import OffloadError

pytestmark = pytest.mark.usefixtures("timeout")


class Subject:
    """A model with the minimum of memory on a disk of its own, and the resident model's bits."""

    def __init__(self, path: Path, disk: Disk, model: Model, truth: list[bytes]) -> None:
        self.path, self.disk, self.model, self.truth = path, disk, model, truth

    def goes_on(self) -> None:
        """After recovery of the disk it gives the right tokens: nothing is stale."""
        self.disk.answer = healthy
        assert budgets.bits(self.model) == self.truth


@pytest.fixture(params=budgets.KINDS, scope="module")
def shared(request, tmp_path_factory):
    path = budgets.write(request.param, tmp_path_factory.mktemp("faults") / "small.gguf")
    truth = budgets.truth_of(
        path, sparse="on" if request.param in ("sparse", "bundled") else "auto"
    )
    disk = Disk(healthy)
    with budgets.on(disk, path, threads=2) as model:
        yield Subject(path, disk, model, truth)


@pytest.fixture
def subject(shared):
    yield shared
    shared.goes_on()


def repeat(model: Model) -> None:
    """Steps after three tokens, repeated until any fault is hit."""
    for _ in range(50):
        model.step(budgets.TEXT[3:9], range(3, 9), [(0,)] * 6, [5])
        model.cells.remove(0, begin=3)


@pytest.mark.parametrize("calls", [0, 1, 30])
@pytest.mark.parametrize(("answer", "message"), LASTING.values(), ids=LASTING)
def test_a_persistent_disk_error(subject, answer, message, calls):
    """One line names the file and the byte, at every step until the disk recovers; then right
    tokens, and earlier cells are unchanged."""
    model, names = subject.model, {file.file.name for file in subject.model.offload._disk.files}
    model.cells.clear()
    before = model.step(budgets.TEXT[:3], range(3), [(0,)] * 3, range(3)).tobytes()
    for _ in range(2):
        subject.disk.calls.clear()
        subject.disk.answer = after(calls, answer)
        with pytest.raises(OffloadError) as raised:
            repeat(model)
        places = {offset for offset, _, told in subject.disk.calls if told == answer}
        lines = {f"{name}: {message.format(place)}" for name in names for place in places}
        assert str(raised.value) in lines
        assert model.cells.positions_of(0).tolist() == [0, 1, 2]
    subject.disk.answer = healthy
    rest = model.step(budgets.TEXT[3:13], range(3, 13), [(0,)] * 10, range(10)).tobytes()
    assert before + rest == subject.truth[0]


@pytest.mark.parametrize("every", [0.002, 0.05])
def test_signals_do_not_end_a_step(subject, received_signals, every):
    """Many in a step, or one in many: right tokens, and steps finish."""
    subject.disk.answer = slow(20e6)
    with sending_signals(signal.SIGUSR1, every, again=True):
        while len(received_signals) < 4:  # steps may all be over before the first
            subject.model.cells.clear()
            for i in range(4):
                logits = subject.model.step([budgets.TEXT[i]], [i], [(0,)], [0]).tobytes()
                assert logits == subject.truth[0][len(logits) * i :][: len(logits)]


def test_ctrl_c_ends_a_step(subject):
    """A step that would wait for seconds ends in about a read's time; the engine continues."""
    model, disk, prompt = subject.model, subject.disk, (budgets.TEXT[:13], range(13), [(0,)] * 13)
    for _ in range(2):
        subject.goes_on()
        model.cells.clear()
        disk.calls.clear()
        model.step(*prompt, range(13))
        whole = len(disk.calls)
        subject.goes_on()
        model.cells.clear()
        disk.calls.clear()
        disk.answer = slow(5e4)
        began = time.monotonic()
        with sending_signals(signal.SIGINT, 0.3), pytest.raises(KeyboardInterrupt):
            model.step(*prompt, range(13))
        assert time.monotonic() - began < 5
        assert model.cells.positions_of(0).size == 0
        assert len(disk.calls) < whole / 2


def test_a_second_ctrl_c(subject):
    """A second interrupt while the engine cleans up after the first: right tokens all the same."""
    model = subject.model
    for where in (
        "engine.offload.stream.Stream.restart",
        "kernels.cpu.runtime.io_pool.IOPool.reset",
    ):
        with (
            patch.object(model.team, "run", side_effect=KeyboardInterrupt),
            pytest.raises(KeyboardInterrupt),
        ):
            budgets.bits(model)
        with patch(where, side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
            budgets.bits(model)
        assert budgets.bits(model) == subject.truth


def overwritten(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))


def truncated(path: Path) -> None:
    os.truncate(path, 4096)


def lengthened(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def first_failure(model: Model) -> Exception:
    """The error of the next step."""
    model.cells.clear()
    with pytest.raises((OffloadError, GGUFError)) as raised:
        model.step(budgets.TEXT[:1], [0], [(0,)], [0])
    return raised.value


@pytest.mark.parametrize("corrupt", [overwritten, truncated, lengthened])
@pytest.mark.parametrize("kind", budgets.KINDS)
def test_modified_files_end_the_step(kind, corrupt, tmp_path):
    """The packed one, or the model's own, from which embeddings and bundles are read: the next step
    names it in an error; a new load packs anew."""
    path = budgets.write(kind, tmp_path / "small.gguf")
    with budgets.on(Disk(healthy), path) as model:
        truth = budgets.bits(model)
        packed = budgets.packed_of(path)
        corrupt(packed)
        message = str(first_failure(model))
    assert message.startswith(f"{packed}: it ")
    assert "while it was read" in message
    packed.unlink()
    with budgets.on(Disk(healthy), path) as model:
        assert budgets.bits(model) == truth
        corrupt(path)
        assert str(first_failure(model)) == f"{path}: it changed while it was read"


@pytest.mark.parametrize("kind", budgets.KINDS)
def test_replaced_files_stay_open(kind, tmp_path):
    """Files that are replaced or removed stay valid while they are open."""
    path = budgets.write(kind, tmp_path / "small.gguf")
    with budgets.on(Disk(healthy), path) as model:
        truth = budgets.bits(model)
        for name in (budgets.packed_of(path), path):
            other = name.with_name("other")
            other.write_bytes(bytes(name.stat().st_size))
            other.replace(name)
            assert budgets.bits(model) == truth
            name.unlink()
            assert budgets.bits(model) == truth


def test_another_engine_packs_with_another_layout(tmp_path):
    """It takes over the packed file's name; the first one keeps its open file."""
    path = budgets.SPARSE.write(tmp_path / "small.gguf")
    with budgets.on(Disk(healthy), path) as first:
        truth = budgets.bits(first)
        with budgets.on(Disk(healthy), path, neuron_bundles=False) as second:
            assert budgets.bits(second) == truth
            assert budgets.bits(first) == truth


def test_an_unreadable_embedding_row(tmp_path, monkeypatch):
    """The error names the model's file, not the packed one."""
    path = budgets.DENSE.write(tmp_path / "small.gguf")
    with GGUFFile(path) as file:
        table = file.tensors["token_embd.weight"]
    with budgets.on(Disk(healthy), path) as model:
        truth = budgets.bits(model)
        with monkeypatch.context() as patched:
            patched.setattr(os, "preadv", raise_eio)
            where = table.offset + budgets.TEXT[0] * table.row_bytes
            message = f"{path}: cannot be read at byte {where}: input/output error"
            with pytest.raises(GGUFError) as raised:
                budgets.bits(model)
            assert str(raised.value) == message
        assert budgets.bits(model) == truth


def raise_eio(*_: object) -> int:
    raise OSError(errno.EIO, "Input/output error")
