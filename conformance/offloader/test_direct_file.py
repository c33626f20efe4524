"""O_DIRECT files: alignments are detected, and changes of the file are reported."""

import errno
import os
import time
from pathlib import Path

import numpy as np
import pytest

from engine.gguf.file import stamp_of
from engine.offload import direct_file
from engine.offload.direct_file import DirectFile


@pytest.fixture
def own(truth, tmp_path):
    """A file to write to."""
    path = tmp_path / "own.bin"
    truth.tofile(path)
    return path


@pytest.mark.parametrize("refused_at", ["open", "read"])
def test_without_o_direct_reads_use_the_page_cache(own, monkeypatch, refused_at):
    """File systems without O_DIRECT: reads use the page cache and drop its pages, with a note.
    (test_ram_budget_command.py runs a model so, and checks the page cache.)"""
    opened = os.open

    def refuse(*arguments):
        if refused_at == "read" or arguments[1] & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return opened(*arguments)

    monkeypatch.setattr(os, "preadv" if refused_at == "read" else "open", refuse)
    with DirectFile(own) as file:
        assert file.note == f"{own}: its file system reads through the page cache only"
        assert (file.file.alignment, file.file.dropped) == (1, True)


@pytest.mark.parametrize("alignment", [512, 4096, None])
def test_the_required_alignment_is_detected(own, monkeypatch, alignment):
    """A disk refuses partial sectors, in the file or in memory; or refuses everything."""
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
def test_modified_files_are_detected(own, change):
    """After any write to the file check fails for good."""
    with DirectFile(own) as file:
        assert (file.file.alignment in (512, 4096), file.note) == (True, None)
        file.check()
        time.sleep(0.02)  # dates are no finer
        change(own)
        for _ in range(2):
            with pytest.raises(OSError, match=r"own\.bin: it changed while it was read$"):
                file.check()


def test_replaced_files_are_refused(own):
    """A file replaced since then is refused."""
    with own.open("rb") as source:
        stamp = stamp_of(source)
    with DirectFile(own, stamp) as file:
        assert file.stamp == stamp
    overwritten = own.with_name("new.bin")
    overwritten.write_bytes(own.read_bytes())
    overwritten.replace(own)
    with pytest.raises(OSError, match=r"own\.bin: it changed while it was read$"):
        DirectFile(own, stamp)


def test_files_that_cannot_be_opened_are_refused(tmp_path):
    """One line has the file's name."""
    with pytest.raises(OSError, match=r"none\.bin: cannot be read: no such file or directory$"):
        DirectFile(tmp_path / "none.bin")
    with pytest.raises(OSError, match=r": cannot be read: this is not a file$"):
        DirectFile(tmp_path)


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_descriptors_are_closed(own, monkeypatch):
    """Descriptors are closed after use, after a refusal, and in child programs."""
    before = descriptors()
    with DirectFile(own) as file:
        assert not os.get_inheritable(file.file.fd)
    with pytest.raises(OSError, match="it changed"):
        DirectFile(own, (0, 0, 0, 0))
    monkeypatch.setattr(direct_file, "ALIGNMENTS", ())
    DirectFile(own).close()
    assert descriptors() == before
