"""A start loads no unused modules, and needs no system calls for Python frames."""

import json

from conformance.support.child import output_of, python
from engine.shell.program import COMMANDS

# What a warm `assay run` does not import: bars, chats, writers of files, the lab, other commands.
LEFT = {
    "rich.console", "engine.shell.terminal", "jinja2", "prompt_toolkit", "llguidance",
    "engine.convert", "engine.quantise", "engine.sparsify", "engine.perplexity", "scipy.optimize",
    "bench", "conformance", "data", "kernels.foreign", "cupy", "torch", "pandas", "safetensors",
    *(f"engine.shell.{name}" for own in COMMANDS.values() for name in own if name != "run"),
}  # fmt: skip
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
def descend(depth):
    for _ in range(500):
        (lambda: None)()
    if depth:
        descend(depth - 1)
def main():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    descend(300)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
main(), begin(main)
"""


def test_a_warm_start_imports_what_it_needs():
    said = [python(STARTED).stderr for _ in range(2)][-1]  # the first certifies
    loaded = set(json.loads(said.splitlines()[-1]))
    assert "engine.shell.run" in loaded
    assert sorted(loaded & LEFT) == []


def test_python_frames_need_no_system_calls():
    """At the end of a chunk of frames, each call would allocate another one."""
    without, with_room = map(int, output_of(DEEP).split())
    assert with_room < 100 < 500 <= without
