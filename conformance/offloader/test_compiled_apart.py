"""A budget of memory while kernels are compiled: another process does it, and this one loads what
was made. The least that a refusal names will do, whatever has to be compiled then."""

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from conformance.support.child import python
from engine.embedded import resolve
from kernels.cache import cache_folder
from kernels.compiled import SERVICES, compile_apart
from kernels.table import find

MIB = 2**20
# After the budget was divided a program still takes a little: samplers, the threads' stacks.
SPARE = 8 * MIB

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="Linux tells the peak"
)

# Loads a model with a budget, generates, and prints the most memory that it had, its tokens and
# what it compiled itself.
CHILD = """
import json, sys
from pathlib import Path

from numba.core.compiler import CompilerBase

compiled, compile_extra = [], CompilerBase.compile_extra

def noting(self, function):
    compiled.append(function.__qualname__)
    return compile_extra(self, function)

CompilerBase.compile_extra = noting

from engine import Engine, SamplingParams

model, budget, draft = sys.argv[1:]
options = {"ram_budget": budget, "threads": 2, "context": 128, "batch": 16, "draft": draft or None}
with Engine.load(model, **options) as engine:
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    tokens = [piece.token for piece in engine.stream("Once upon a time", params)]
peak = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024
print(json.dumps([peak, tokens, compiled]))
"""


def child(model: str, budget: str, draft: str = "", **environment: str) -> Any:
    """What it prints, or the line with which it was refused."""
    done = python(CHILD, resolve(model), budget, draft, env=os.environ | environment)
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr.splitlines()[-1]


def least(model: str, draft: str = "") -> int:
    """What a refusal names, in MiB."""
    found = re.search(r"needs at least (\d+) MiB \(", child(model, "1", draft))
    return int(found[1])


@pytest.fixture(name="cold")
def _cold(tmp_path):
    """An environment whose cache has all but the code of what runs beside kernels."""
    child("story-f16", "1GiB")  # whatever was certified by now
    folder = tmp_path / "cache"
    ignored = shutil.ignore_patterns("packed", *(f"{share.key[:32]}.share" for share in SERVICES))
    shutil.copytree(cache_folder(), folder, ignore=ignored)
    return {"ASSAY_CACHE": str(folder)}


def test_nothing_is_compiled_within_a_budget(cold):
    """Not even with code to be made; so the least that was named when it was there will do."""
    budget = least("story-f16")
    peak, tokens, compiled = child("story-f16", f"{budget}MiB", **cold)
    assert compiled == []
    assert peak <= budget * MIB + SPARE
    warm = child("story-f16", f"{budget}MiB", **cold)
    assert warm[1:] == [tokens, []]
    assert warm[0] <= budget * MIB + SPARE


@pytest.mark.parametrize(
    ("model", "draft"), [("story-relu", ""), ("story-f16", "story-draft-q8_0")]
)
def test_the_least_of_others(model, draft):
    """Neurons, and a draft model, which is loaded first and counts: the least named will do."""
    budget = least(model, draft)
    peak, tokens, compiled = child(model, f"{budget}MiB", draft)
    assert compiled == []
    assert peak <= budget * MIB + SPARE
    assert tokens == child(model, "1GiB")[1]


def test_what_is_kept_needs_no_child(monkeypatch):
    """Nor does a child that cannot be started stop anything."""
    kernel = find("rms_norm/cpu/generic")
    compile_apart([kernel])
    assert all(share.is_kept for share in (*SERVICES, *kernel.shares))
    monkeypatch.setattr(sys, "executable", "/nowhere")
    compile_apart([kernel])
    monkeypatch.setattr(type(kernel.share), "is_kept", False)
    compile_apart([kernel])
