"""A budget of memory is kept: by what the system counts, and with the system watching."""

import json
import os
import re
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
from conformance.support.page_cache import pages_kept
from data import random_model
from kernels.cache import cache_folder
from reference.formats import FORMATS

MIB = 2**20
MARGIN = 64 * MIB  # beside the budget
SIZE = 300 * MIB  # of the model, at least
CGROUPS = Path("/sys/fs/cgroup")
pytestmark = [
    pytest.mark.usefixtures("in_time"),
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells the peak"),
]

# Loads a model with a budget (0: none), and prints the most memory it had then, and after a prompt
# and some tokens, with its notes.
CHILD = """
import json, os, sys
from pathlib import Path

if sys.argv[3]:
    Path(sys.argv[3]).write_text(str(os.getpid()))

from engine import Engine

def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024

options = {"ram_budget": int(sys.argv[2]), "threads": 2, "context": 256, "batch": 64}
with Engine.load(sys.argv[1], **options) as engine:
    loaded, model = peak(), engine.model
    model.evaluate(range(64), 0)
    tokens = [int(model.evaluate([7], 64 + i).argmax()) for i in range(32)]
    print(json.dumps([loaded, peak(), tokens, model.notes]))
"""


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


def child(path: Path, budget: int, group: Path | str = "") -> "CompletedProcess[str]":
    """With the file that takes the processes of a group, if any."""
    return python(CHILD, path, budget, group)


def answer(done: "CompletedProcess[str]") -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def least(path):
    """What a refusal names, in bytes; nothing was packed for that."""
    done = child(path, 1)
    found = re.search(r"needs at least (\d+) MiB \(", done.stderr)
    assert found, done.stderr
    assert not packed_of(path, cache_folder()).exists()
    return int(found[1]) * MIB


def test_no_budget_is_exceeded(path, least):
    """Loading, packing for the first time, a prompt and tokens, from the least on; the tokens are
    those of all in memory, and the page cache is no second copy."""
    tokens = []
    for budget in (least, least + SIZE // 2, least + 2 * SIZE):
        loaded, run, found, notes = answer(child(path, budget))
        assert loaded <= run <= budget + MARGIN, notes
        tokens.append(found)
        kept = packed_of(path, cache_folder())
        assert pages_kept(kept) * os.sysconf("SC_PAGE_SIZE") < kept.stat().st_size / 100
    assert tokens[0] == tokens[1] == tokens[2]
    assert run > least + SIZE / 2  # all of it is in memory, and counts


@contextmanager
def memory_group(limit: int) -> Iterator[Path]:
    """What takes the processes of a memory cgroup with so many bytes."""
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


def test_with_the_system_watching(path, least):
    """In a group that is killed beyond the budget and a margin; without a budget it is killed."""
    budget = least + 40 * MIB
    with memory_group(budget + MARGIN) as group:
        assert answer(child(path, budget, group))[1] <= budget + MARGIN
        assert child(path, 0, group).returncode == -9
