"""What a start does without: modules that nobody asked for, and system calls for frames."""

import json
import sys

import pytest

from conformance.support.child import output_of, python
from engine.shell.program import COMMANDS

# What a warm `assay run` does not import, and who has it instead.
LEFT = {
    "engine.shell.terminal": "who shows tables, notes and bars",
    "rich.console": "the same",
    "jinja2": "templates of chats",
    "scipy.optimize": "the solver that places neurons",
    "safetensors": "convert",
    "prompt_toolkit": "a chat's line",
    "engine.convert": "convert",
    "engine.quantise": "quantize",
    "engine.sparsify": "sparsify",
    "engine.perplexity": "perplexity",
    "kernels.foreign": "judge",
    "bench": "the lab's own commands",
    "conformance": "tests",
    "data": "nobody but tests and data's programs",
    "cupy": "a GPU",
    "torch": "peers, and training",
    "pandas": "frames of results",
    "matplotlib": "reports",
    "llguidance": "a form of answers",
    "huggingface_hub": "models of the hub",
    **{f"engine.shell.{name}": name for own in COMMANDS.values() for name in own if name != "run"},
}
STARTED = """
import atexit, json, sys
atexit.register(lambda: print(json.dumps([*sys.modules]), file=sys.stderr))
sys.argv = ["assay", "run", "story", "-p", "Once", "-n", "1"]
from assay.__main__ import main
main()
"""
# Pages that were asked for while a call was made 500 times at each of 300 depths.
DEEP = """
import resource
from kernels.child import begin

def nothing():
    pass

def descend(depth):
    for _ in range(500):
        nothing()
    if depth:
        descend(depth - 1)

def faults(call):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    call()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

found = []
def main():
    found.append(faults(lambda: descend(300)))

main()
begin(main)
print(*found)
"""


def test_a_warm_start_imports_what_it_needs():
    """A command's own modules, and those of what was asked of it. The first start certifies."""
    for _ in range(2):
        done = python(STARTED)
        assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stderr.splitlines()[-1]))
    assert "engine.shell.run" in loaded
    assert sorted(loaded & LEFT.keys()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="pages are counted as Linux counts them")
def test_frames_have_room():
    """Where a chunk of frames ends, each call would ask the system for another."""
    without, with_room = map(int, output_of(DEEP).split())
    assert with_room < 100 < 500 <= without
