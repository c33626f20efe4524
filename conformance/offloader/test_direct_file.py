"""Files past the page cache: what reads must be aligned to is found, what changes is told."""

import errno
import os
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from conformance.support.page_cache import pages_kept
from conformance.support.streams import Stream
from engine.gguf.file import stamp_of
from engine.offload import direct_file
from engine.offload.direct_file import DirectFile
from kernels.cpu.formats.packing import aligned
from kernels.cpu.runtime.readers import Readers, iovecs_of
from kernels.cpu.runtime.team import Team

pytestmark = pytest.mark.usefixtures("in_time")


@pytest.fixture
def own(truth, tmp_path):
    """A file to write to."""
    path = tmp_path / "own.bin"
    truth.tofile(path)
    return path


def forget(path):
    """Have the system write out and drop what it keeps of a file."""
    with path.open("rb") as source:
        os.fsync(source.fileno())
        os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def test_every_byte(own, truth):
    """Random sectors through a team's step, and the file's end."""
    with DirectFile(own) as file, Readers([file.file], 16, 2, 2) as readers, Team(2) as team:
        unit = file.file.alignment
        assert unit in (512, 4096)
        assert file.note is None
        assert Stream(readers, truth, 100, 2, 2, 1, unit=unit, largest=20).run(team)
        first = len(truth) // unit * unit
        memory, then = aligned(unit, 4096), int(readers.counters[1]) + 1
        readers.post(0, first, iovecs_of([memory]), len(truth) - first, 1)
        assert readers.wait(1, then)
        assert_array_equal(memory[: len(truth) - first], truth[first:])
        file.check()


def test_the_page_cache_stays_as_it_is(own, truth):
    """Nothing of what is read stays in the system's cache."""
    forget(own)
    least = pages_kept(own)
    with DirectFile(own) as file, Readers([file.file]) as readers:
        memory = aligned(2**19, 4096)
        readers.read(0, 2**18, [memory])
    assert_array_equal(memory, truth[2**18 : 2**18 + 2**19])
    assert pages_kept(own) == least


@pytest.mark.parametrize("refused_at", ["open", "read"])
def test_where_it_is_refused(own, truth, monkeypatch, refused_at):
    """File systems that know no O_DIRECT: read through the cache, dropped, and noted."""
    opened, read = os.open, os.preadv

    def refuse(*arguments):
        if refused_at == "read" or arguments[1] & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return opened(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv" if refused_at == "read" else "open", refuse)
        file = DirectFile(own)
    assert read is os.preadv
    assert file.note == f"{own}: its file system reads through the page cache only"
    assert (file.file.alignment, file.file.dropped) == (1, True)
    forget(own)
    least = pages_kept(own)
    with file, Readers([file.file], 4) as readers:
        buffers = list(np.zeros((40, 12288), np.uint8))
        iovecs = [iovecs_of([b]) for b in buffers]
        for i, pairs in enumerate(iovecs):
            assert readers.post(0, 12288 * 2 * i, pairs, 12288)
        assert readers.wait(0, 40)
        for i, buffer in enumerate(buffers):
            assert_array_equal(buffer, truth[12288 * 2 * i :][:12288])
    assert pages_kept(own) == least


@pytest.mark.parametrize("alignment", [512, 4096, None])
def test_alignments_are_tried(own, monkeypatch, alignment):
    """A disk refuses what is no whole sector, in the file or in memory; or refuses everything."""
    read = os.preadv

    def sectors(fd, buffers, offset):
        addresses = [np.frombuffer(b, np.uint8).ctypes.data for b in buffers]
        sizes = [len(b) for b in buffers]
        if alignment is None or any(n % alignment for n in (*addresses, *sizes, offset)):
            raise OSError(errno.EINVAL, "Invalid argument")
        return read(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", sectors)
    with DirectFile(own) as file:
        assert file.file.alignment == (alignment or 1)
        assert file.file.dropped == (file.note is not None) == (alignment is None)


def overwrite(path):
    with path.open("r+b") as target:
        target.write(b"other")


CHANGES = {
    "written into": overwrite,
    "longer": lambda path: os.truncate(path, 2**21),
    "shorter": lambda path: os.truncate(path, 2**19),
    "touched": os.utime,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changes_are_told(own, change):
    """Whoever writes into the file makes check fail, for good."""
    with DirectFile(own) as file:
        file.check()
        time.sleep(0.02)  # dates are no finer
        change(own)
        for _ in range(2):
            with pytest.raises(OSError, match=r"own\.bin: it changed while it was read$"):
                file.check()


def test_the_stamp_of_who_opened_it_before(own):
    """Another file at the path since then is refused."""
    with own.open("rb") as source:
        stamp = stamp_of(source)
    with DirectFile(own, stamp) as file:
        assert file.stamp == stamp
    overwritten = own.with_name("new.bin")
    overwritten.write_bytes(own.read_bytes())
    overwritten.replace(own)
    with pytest.raises(OSError, match=r"own\.bin: it changed while it was read$"):
        DirectFile(own, stamp)


def test_what_cannot_be_opened(tmp_path):
    """One line, with the name."""
    with pytest.raises(OSError, match=r"none\.bin: cannot be read: no such file or directory$"):
        DirectFile(tmp_path / "none.bin")
    with pytest.raises(OSError, match=r": cannot be read: this is not a file$"):
        DirectFile(tmp_path)


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_descriptors_are_closed(own, monkeypatch):
    """After use, after a refusal, and not handed to other programs."""
    before = descriptors()
    with DirectFile(own) as file:
        assert not os.get_inheritable(file.file.fd)
    with pytest.raises(OSError, match="it changed"):
        DirectFile(own, (0, 0, 0, 0))
    monkeypatch.setattr(direct_file, "ALIGNMENTS", ())
    DirectFile(own).close()
    assert descriptors() == before
