"""Sources edited during a process's life: code is never certified, nor run, as that of another
source."""

import json
import os
import sys
from subprocess import PIPE

import pytest

from conformance.support.child import opened, output_of
from conformance.support.rooms import Copy

FILE = "kernels/cpu/activations.py"
RIGHT, WRONG = (f"return {of}(zero(f32x16), x)\n" for of in ("maximum", "minimum"))

# A process that imports the rooms, tells so, and goes on when the file has been edited.
LIVING = """
import sys
from kernels.certificates import Key, Store
from kernels.dispatch import Dispatcher, KernelSpec
from kernels.table import find
relu = find("relu/cpu/generic")
if "before" in sys.argv:
    Key.of(relu)
print("imported", flush=True)
sys.stdin.readline()
try:
    print(Dispatcher(Store()).choose([KernelSpec("relu")])[KernelSpec("relu")].name)
except (RuntimeError, ValueError) as error:
    print(f"{type(error).__name__}: {error}")
"""
ANEW = """
import json
from kernels.certificates import Key, Store
from kernels.certify import certify
from kernels.table import find
from kernels.trial import Request
relu, store = find("relu/cpu/generic"), Store()
certify([Request(relu.name)], store)
print(json.dumps([Key.of(relu).digest, store.get(relu).failure, relu.share.code.digest]))
"""


class RunningProcess:
    """The process, waiting for its line."""

    def __init__(self, copy: Copy, *words: str) -> None:
        self.process = opened(
            sys.executable, "-c", LIVING, *words, cwd=copy.folder, env=copy.environment(),
            stdin=PIPE, stderr=None,
        )  # fmt: skip
        assert self.process.stdout.readline() == "imported\n"

    def answer(self) -> str:
        return self.process.communicate("go on\n", timeout=300)[0].strip()


@pytest.fixture
def copy(tmp_path):
    return Copy(tmp_path)


def in_a_fresh_process(copy: Copy) -> tuple[str, str, str]:
    """The kernel's key, failure and machine code, in a fresh process."""
    key, failure, code = json.loads(copy.python(ANEW))
    return key, failure, code


def test_edits_are_detected_before_compiling(copy):
    living = RunningProcess(copy)
    copy.edit(FILE, RIGHT, WRONG)
    said = living.answer()
    assert said == f"EditedError: {copy.folder / FILE} was edited since this process began:" + (
        " start it anew"
    )
    assert not (copy.folder / "cache").exists()
    assert in_a_fresh_process(copy)[1]


def test_old_code_is_never_certified_as_new(copy):
    """A process that computed keys before the edit compiles what it imported, and stores it as
    that; the trial, in a process of its own, tries the present file. So the edit, which is wrong,
    is rejected for every later process, and the right source stays certified."""
    right = in_a_fresh_process(copy)
    living = RunningProcess(copy, "before")
    copy.edit(FILE, RIGHT, WRONG)
    assert living.answer() == "relu/cpu/generic"  # what it imported, under its own certificate
    wrong = in_a_fresh_process(copy)
    assert right[1] == ""
    assert wrong[1]
    assert all(a != b for a, b in zip(right, wrong, strict=True))
    copy.edit(FILE, WRONG, RIGHT)
    assert in_a_fresh_process(copy) == right


def test_a_trial_of_other_sources_gives_no_certificate(copy):
    """It computed keys, and had no certificate when the file was edited."""
    living = RunningProcess(copy, "before")
    copy.edit(FILE, RIGHT, WRONG)
    assert living.answer() == (
        "UncertifiedError: relu/cpu/generic changed while it was tried: load again"
    )
    assert in_a_fresh_process(copy)[1]


def test_reverted_edits_are_detected(copy):
    """Something may have been imported in between; resetting dates does not help."""
    living = RunningProcess(copy)
    path = copy.folder / FILE
    text, dates = path.read_text(), path.stat()
    path.write_text(text.replace(RIGHT, WRONG))
    path.write_text(text)
    os.utime(path, ns=(dates.st_atime_ns, dates.st_mtime_ns))
    assert "was edited since this process began" in living.answer()


FINGERPRINT = "from kernels.table import find; print(find('relu/cpu/generic').share.fingerprint)"


def test_stale_bytecode_is_detected(copy):
    """Bytecode of equal size and date is detected, which Python takes for this source's."""
    environment = copy.environment()
    del environment["PYTHONDONTWRITEBYTECODE"]
    path = copy.folder / FILE
    output_of("import kernels.cpu.activations", cwd=copy.folder, env=environment)
    dates = path.stat()
    copy.edit(FILE, RIGHT, WRONG)
    os.utime(path, ns=(dates.st_atime_ns, dates.st_mtime_ns))
    with pytest.raises(RuntimeError, match=f"EditedError: {path} is not what its .pyc file"):
        output_of(FINGERPRINT, cwd=copy.folder, env=environment)
    assert copy.python(f"import shutil; shutil.rmtree('kernels/cpu/__pycache__')\n{FINGERPRINT}")


def test_bytecode_of_an_earlier_edit_is_unused(copy):
    """Python does not use it, and where it cannot write it leaves it there."""
    environment = copy.environment()
    del environment["PYTHONDONTWRITEBYTECODE"]
    output_of("import kernels.cpu.activations", cwd=copy.folder, env=environment)
    before = copy.python(FINGERPRINT)
    copy.edit(FILE, RIGHT, WRONG)
    os.utime(copy.folder / FILE, (0, 0))
    assert copy.python(FINGERPRINT) != before


# A share that is defined where no file is: `python -c`, as in a notebook.
HERE = """
import sys, types
import numpy as np
from numba import njit
from kernels.cpu.runtime.share import arguments, pack_words, share
assert __spec__ is None
mine_too = types.ModuleType("mine_too")
mine_too.FACTOR = float(sys.argv[1])
SIGNATURE = "x: f64[n] -> out: f64[n]"
TABLE = np.arange(float(sys.argv[2]))

@njit
def product(value):
    return value * mine_too.FACTOR + TABLE[-1]

@share(SIGNATURE)
def mine(args, thread, n_threads):
    x, out = arguments(args, SIGNATURE)
    for i in range(len(x)):
        out[i] = product(x[i])

values = {"x": np.ones(1), "out": np.zeros(1)}
mine(pack_words(SIGNATURE, values))
print(mine.key, mine.code.kept, values["out"][0])
"""


def test_notebook_shares_are_identified_by_their_code(copy):
    """All that a share without a file computes with is in its key."""
    words = [("2", "3"), ("5", "3"), ("2", "4"), ("2", "3")]
    said = [copy.python(HERE, *w).split() for w in words]
    assert [(kept, float(out)) for _, kept, out in said] == [
        ("False", 4.0), ("False", 7.0), ("False", 5.0), ("True", 4.0),
    ]  # fmt: skip
    assert len({key for key, *_ in said}) == 3


CALLING = """
from kernels.cpu import activations
from kernels.cpu.runtime.share import arguments, share
SIGNATURE = "x: f32[n] -> out: f32[n]"

@share(SIGNATURE)
def mine(args, thread, n_threads):
    x, out = arguments(args, SIGNATURE)
    for i in range(len(x)):
        out[i] = activations.opened(x[i])

print(mine.key)
"""


@pytest.mark.parametrize("file", [FILE, "kernels/cpu/isa/simd.py"])
def test_notebook_shares_are_identified_by_their_calls(copy, file):
    """Code in our rooms, with all that it imports."""
    before = copy.python(CALLING)
    with (copy.folder / file).open("a") as source:
        source.write("# edited\n")
    assert copy.python(CALLING) != before
