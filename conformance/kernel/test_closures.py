"""Compiled closures on disk: found again by every process, and never taken for one another."""

import numpy as np
import pytest
from numba import njit

from conformance.support.rooms import Copy
from kernels.cpu.runtime.closures import identity

COMPILE = """
import sys
from kernels.table import find
for name in sys.argv[1:]:
    find(name).share.compile()
"""
TRY = """
import sys
from kernels.table import find
from kernels.trial import demanded
for name in sys.argv[1:]:
    certificate = demanded(find(name))
    print(name, certificate.passed, find(name).share.code.kept)
"""
PAIRS = (  # closures of functions, of tags and of overloads
    ("linear/cpu/generic/F16", "linear/cpu/generic/BF16"),
    ("kv_write/cpu/generic/F32", "kv_write/cpu/generic/Q8_0"),
    ("quantise_weighted/cpu/generic/Q5_0", "quantise_weighted/cpu/generic/Q4_0"),
)


def test_what_processes_compiled_apart_works_together(tmp_path):
    """Of each pair of closures of one function either is compiled in a process of its own, and all
    are tried in a third one: they come from disk, and each is still what it was."""
    copy = Copy(tmp_path)
    for names in zip(*PAIRS, strict=True):
        copy.python(COMPILE, *names)
    tried = [name for pair in PAIRS for name in pair]
    assert copy.python(TRY, *tried).splitlines() == [f"{name} True True" for name in tried]


def made(factor, inner=None):
    @njit
    def scaled(x):
        return factor * (inner(x) if inner else x)

    return scaled


def test_identity_tells_closures_apart():
    """By their numbers and by the functions they close over, however deep; not by their address."""
    names = [identity(made(f, made(g)).py_func) for f in (2, 3) for g in (2, 3)]
    assert len(set(names)) == 4
    assert names[0] == identity(made(2, made(2)).py_func)


@pytest.mark.parametrize("value", [object(), np.zeros(5000)], ids=["an object", "a long array"])
def test_what_has_no_lasting_name_is_refused(value):
    with pytest.raises(TypeError, match="what is it in another process"):
        identity(made(value).py_func)
