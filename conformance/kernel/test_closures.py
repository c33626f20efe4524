"""Compiled closures on disk: loaded by every process, and never confused with one another."""

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


def test_closures_compiled_in_separate_processes_work_together(tmp_path):
    """Two closures of each function are compiled in separate processes, and tried together in a
    third: they are loaded from disk, and compute what they should."""
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


def test_closure_identity():
    """Closures differ by numbers and functions they close over, at any depth, not by address."""
    names = [identity(made(f, made(g)).py_func) for f in (2, 3) for g in (2, 3)]
    assert len(set(names)) == 4
    assert names[0] == identity(made(2, made(2)).py_func)


@pytest.mark.parametrize("value", [object(), np.zeros(5000)], ids=["an object", "a long array"])
def test_closures_without_a_stable_name_are_refused(value):
    with pytest.raises(TypeError, match="what is it in another process"):
        identity(made(value).py_func)
