"""Tests of the tests' own helpers."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from conformance.support.child import output_of, python, run, started
from conformance.support.files.disks import Disk, after, healthy, in_turn
from conformance.support.files.full_disk import full_after, small_disk
from conformance.support.files.page_cache import pages_kept
from conformance.support.models.small_families import SmallFalcon, SmallOPT
from conformance.support.models.small_models import Small
from conformance.support.models.sparse_files import SmallSparse, Sparse
from conformance.support.program import DEAF, complaints, fault, misuse
from conformance.support.rooms import Copy
from kernels.cpu.runtime.io_pool import iovecs_of


def test_a_childs_output_and_status_are_returned():
    """Its output, its errors and its exit status are returned; its standard input is empty."""
    done = python("import sys; print(sys.argv[1]); sys.exit(sys.stdin.read() or 'no')", 5)
    assert (done.returncode, done.stdout, done.stderr) == (1, "5\n", "no\n")
    assert run("cat", input="a").stdout == "a"


def test_a_child_that_fails_or_hangs_is_an_error():
    """The error has the child's own message, or names the timeout."""
    assert output_of("print(1)") == "1\n"
    with pytest.raises(RuntimeError, match=r"exit 1\n(.|\n)*ZeroDivisionError"):
        output_of("1 / 0")
    with pytest.raises(subprocess.TimeoutExpired):
        python("import time; time.sleep(60)", timeout=0.1)


def test_a_child_is_gone_afterwards():
    """The child is ended, whatever it was doing."""
    with started(
        sys.executable, "-c", "print(flush=True); input()", stdin=subprocess.PIPE
    ) as child:
        assert child.stdout.readline() == "\n"
        assert child.poll() is None
    assert child.returncode == -9


def test_a_deaf_child_ignores_ctrl_c():
    """The child and its own children ignore Ctrl-C."""
    program = "import os, signal; os.kill(os.getpid(), signal.SIGINT); print(1)"
    assert run(*DEAF, sys.executable, "-c", program).stdout == "1\n"
    assert run(sys.executable, "-c", program).stdout == ""


def test_fault_and_misuse_lines():
    """One plain line, and a last line after the usage; lines about compilation are no fault."""
    compiling = "assay: compiling and trying kernels of x\n"
    assert complaints(compiling + "else\n") == "else\n"
    assert fault((1, "", compiling + "assay: wrong\n")) == "wrong"
    assert misuse((2, "", "usage\nwrong\n")) == "wrong"
    for outcome in ((0, "", "assay: a\n"), (1, "", "a\n"), (1, "", "assay: a\nassay: b\n"),
                    (1, "", "assay: \x00\n"), (1, "", "")):  # fmt: skip
        with pytest.raises(AssertionError):
            fault(outcome)
    for outcome in ((1, "", "a\n"), (2, "a", "a\n"), (2, "", "Traceback\na\n")):
        with pytest.raises(AssertionError):
            misuse(outcome)


def read(disk: Disk, path: Path, size: int, offset: int = 0) -> tuple[int, bytes]:
    """The result of one preadv (or its errno, negative), and the memory after it."""
    buffers = [np.zeros(size // 2, np.uint8), np.zeros(size - size // 2, np.uint8)]
    iovecs = iovecs_of(buffers)
    with path.open("rb") as file:
        found = disk._preadv(file.fileno(), iovecs.ctypes.data, len(buffers), offset)
    return found, b"".join(b.tobytes() for b in buffers)


def test_scripted_disks(tmp_path):
    """It reads, reads less and corrupts the rest, or fails; and it records its calls."""
    path = tmp_path / "file"
    path.write_bytes(bytes(range(8)))
    disk = Disk(in_turn([3, -errno.EIO]))
    assert read(disk, path, 6, 1) == (3, bytes([1, 2, 3]) + b"\xee" * 3)
    assert read(disk, path, 6)[0] == -1
    assert read(disk, path, 6, 4) == (4, bytes([4, 5, 6, 7, 0, 0]))
    assert disk.calls == [(1, 6, 3), (0, 6, -errno.EIO), (4, 6, None)]
    answers = after(2, 0)
    assert [answers(0, 1) for _ in range(4)] == [None, None, 0, 0]
    assert healthy(0, 1) is None


def test_full_disks_recover(tmp_path):
    """Either implementation is full, and well again."""
    for limit in (full_after(4096), small_disk(tmp_path, 2**16)):
        with limit, pytest.raises(OSError, match=r"File too large|No space left"):
            (tmp_path / "file").write_bytes(bytes(2**20))
        (tmp_path / "file").write_bytes(bytes(2**20))


def test_cached_pages_are_counted(tmp_path):
    """All pages of a file just written, and none of one just dropped."""
    path = tmp_path / "file"
    path.write_bytes(bytes(40_960))
    assert pages_kept(path) == 10
    with path.open("rb+") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert pages_kept(path) <= 10  # a file system in memory keeps all


def test_edits_match_exactly_once(tmp_path):
    """No match and several are errors, since a test would then try something else."""
    copy = Copy(tmp_path)
    file = "reference/op.py"
    for words, times in (
        ("nowhere in it", 0),
        ("def ", copy.folder.joinpath(file).read_text().count("def ")),
    ):
        with pytest.raises(ValueError, match=f"stands {times} times, wanted once"):
            copy.edit(file, words, "")


SMALL = {
    "llama": Small(), "biases, Q8_0": Small(biases=True, tied=True, format="Q8_0"),
    "falcon": SmallFalcon(two_norms=True), "opt": SmallOPT(format="F16"),
    "sparse": SmallSparse(magic="GGUF"),
}  # fmt: skip


@pytest.mark.parametrize("small", SMALL.values(), ids=SMALL)
def test_files_have_their_tensors(small, tmp_path):
    """The gguf package reads them byte for byte; writing again gives the same bytes."""
    weights, norms = small.tensors()
    wanted = {name: w.data.tobytes() for name, w in weights.items()}
    wanted |= {name: norm.tobytes() for name, norm in norms.items()}
    reader = gguf.GGUFReader(small.write(tmp_path / "a.gguf"))
    assert {t.name: t.data.tobytes() for t in reader.tensors} == wanted
    small.write(tmp_path / "b.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_sparse_files_omit_a_tensor(tmp_path):
    """One tensor is missing, and the magic is PowerInfer's."""
    name = "blk.1.fc1.weight"
    path = Sparse().write(tmp_path / "a.gguf", without=name)
    data = path.read_bytes()
    assert data.startswith(b"PWRI")
    path.write_bytes(b"GGUF" + data[4:])
    found = {tensor.name for tensor in gguf.GGUFReader(path).tensors}
    assert found == {tensor.name for tensor in Sparse().tensors()} - {name}
