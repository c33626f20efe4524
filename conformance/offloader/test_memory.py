"""Memory budgets are kept, by the system's accounting and enforced by the system.

Also while kernels are compiled, since another process compiles them and this one loads the result:
the minimum named in an error suffices, whatever has to be compiled.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from unittest.mock import patch

import pytest

from conformance.support.budgets import packed_of
from conformance.support.child import python
from conformance.support.files.page_cache import pages_kept
from conformance.support.models.small_families import SmallMixture
from data import random_model
from kernels.cache import cache_folder
from kernels.compiled import SERVICES, compile_apart
from kernels.table import find
from reference.formats import FORMATS

MIB = 2**20
MARGIN = 64 * MIB  # beside the budget
# After the budget was divided a program still takes a little: samplers, the threads' stacks.
SPARE = 8 * MIB
SIZE = 300 * MIB  # of the model, at least
CGROUPS = Path("/sys/fs/cgroup")
pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="Linux tells the peak"
)

# Loads a model, generates, and prints the most memory that it had, loaded and in the end, its
# tokens, its notes, and what it compiled itself.
CHILD = """
import json, os, sys
from pathlib import Path

model, group, options = sys.argv[1:]
if group:
    Path(group).write_text(str(os.getpid()))

from numba.core.compiler import CompilerBase

compiled, compile_extra = [], CompilerBase.compile_extra

def noting(self, function):
    compiled.append(function.__qualname__)
    return compile_extra(self, function)

CompilerBase.compile_extra = noting

from engine import Engine, SamplingParams

def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024

with Engine.load(model, threads=2, **json.loads(options)) as engine:
    loaded, params = peak(), SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)
    tokens = [piece.token for piece in engine.stream("Once upon a time " * 4, params)]
    notes = engine.model.notes
found = {"loaded": loaded, "peak": peak(), "tokens": tokens, "notes": notes, "compiled": compiled}
print(json.dumps(found))
"""


def child(
    model: Path | str,
    budget: int,
    group: Path | str = "",
    cache: Path | None = None,
    **options: Any,
) -> "CompletedProcess[str]":
    """Run with a budget in bytes (0: none), a cgroup's procs file, if any, and a cache."""
    large = {"context": 256, "batch": 64} if isinstance(model, Path) else {}
    given = {"context": 128, "batch": 16, **large, **options, "ram_budget": budget}
    env = {**os.environ, **({"ASSAY_CACHE": str(cache)} if cache else {})}
    return python(CHILD, model, group, json.dumps(given), env=env)


def answer(*arguments: Any, **options: Any) -> dict[str, Any]:
    done = child(*arguments, **options)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def minimum_of(model: Path | str, **options: Any) -> int:
    """The minimum in bytes that an error names."""
    done = child(model, 1, **options)
    found = re.search(r"needs at least (\d+) MiB \(", done.stderr)
    assert found, done.stderr
    return int(found[1]) * MIB


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A random model in F16, of few large blocks."""
    path = tmp_path_factory.mktemp("memory") / "large.gguf"
    shape = replace(random_model.SHAPES["tinyllama-1.1b"], blocks=3)
    vocabulary = random_model.made_up_vocabulary(8000)
    predictors = random_model.Predictors(32, 0.1)
    with patch.dict(random_model.SHAPES, {"large": shape}):
        random_model.write(
            path, "large", vocabulary, FORMATS["F16"], predictors, 0, lambda *_: None
        )
    assert path.stat().st_size > SIZE
    yield path
    packed_of(path, cache_folder()).unlink(missing_ok=True)
    path.unlink()


@pytest.fixture(scope="module")
def minimum(path):
    """Nothing was packed for the error."""
    found = minimum_of(path)
    assert not packed_of(path, cache_folder()).exists()
    return found


def test_no_budget_is_exceeded(path, minimum):
    """Loading, packing for the first time, a prompt and tokens, from the minimum on; the tokens are
    those of the resident model, and the page cache holds no second copy."""
    tokens = []
    for budget in (minimum, minimum + SIZE // 2, minimum + 2 * SIZE):
        told = answer(path, budget)
        assert told["loaded"] <= told["peak"] <= budget + MARGIN, told["notes"]
        tokens.append(told["tokens"])
        kept = packed_of(path, cache_folder())
        assert pages_kept(kept) * os.sysconf("SC_PAGE_SIZE") < kept.stat().st_size / 100
    assert tokens[0] == tokens[1] == tokens[2]
    assert told["peak"] > minimum + SIZE / 2  # all of it is in memory, and counts


@contextmanager
def memory_group(limit: int) -> Iterator[Path]:
    """A memory cgroup with a limit of this many bytes."""
    first = CGROUPS / "memory" if (CGROUPS / "memory").is_dir() else CGROUPS
    group = first / f"assay-{os.getpid()}"
    names = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"), ("memory.max",)
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made: {error}")
    try:
        wanted = [group / name for name in names[first == CGROUPS] if (group / name).exists()]
        if not wanted:
            pytest.skip("cgroups here have no limit of memory")
        for name in wanted:
            name.write_text(str(limit))
        yield group / "cgroup.procs"
    finally:
        group.rmdir()


def test_budgets_hold_in_a_cgroup(path, minimum):
    """A cgroup kills the process without a budget, and does not within budget and margin."""
    budget = minimum + 40 * MIB
    with memory_group(budget + MARGIN) as group:
        assert answer(path, budget, group)["peak"] <= budget + MARGIN
        assert child(path, 0, group).returncode == -9


@pytest.fixture
def cold(tmp_path):
    """A cache without the code that runs besides kernels, and the resident model's tokens."""
    tokens = answer("story-f16", 2**30)["tokens"]  # and whatever it wants is certified by now
    folder = tmp_path / "cache"
    ignored = shutil.ignore_patterns("packed", *(f"{share.key[:32]}.share" for share in SERVICES))
    shutil.copytree(cache_folder(), folder, ignore=ignored)
    return folder, tokens


def test_compilation_needs_no_budget(cold):
    """The minimum named suffices even if code has to be compiled."""
    budget = minimum_of("story-f16")
    cache, tokens = cold
    told = answer("story-f16", budget, cache=cache)
    assert told["compiled"] == []
    assert told["peak"] <= budget + SPARE
    assert told["tokens"] == tokens


@pytest.mark.parametrize(
    ("model", "draft"), [("story-relu", None), ("story-f16", "story-draft-q8_0")]
)
def test_the_minimum_for_neurons_and_draft_models(model, draft):
    """The minimum named suffices for neurons, and with a draft model, which counts."""
    budget = minimum_of(model, draft=draft)
    told = answer(model, budget, draft=draft)
    assert told["compiled"] == []
    assert told["peak"] <= budget + SPARE
    assert told["tokens"] == answer(model, 2**30)["tokens"]


def test_the_minimum_for_experts(tmp_path):
    """The minimum named suffices for experts that do not all fit."""
    small = SmallMixture(hidden=256, width=256, experts=32, blocks=4, format="F16")
    path = small.write(tmp_path / "small.gguf")
    budget = minimum_of(path)
    told = answer(path, budget)
    share = re.search(r"room for (\d+)% of the mixtures' experts", told["notes"][-1])
    assert share
    assert int(share[1]) < 75
    assert told["peak"] <= budget + SPARE


def test_cached_code_needs_no_child(monkeypatch):
    """With cached code, a child that cannot be started prevents nothing."""
    kernel = find("rms_norm/cpu/generic")
    compile_apart([kernel])
    assert all(share.is_kept for share in (*SERVICES, *kernel.shares))
    monkeypatch.setattr(sys, "executable", "/nowhere")
    compile_apart([kernel])
    monkeypatch.setattr(type(kernel.share), "is_kept", False)
    compile_apart([kernel])
