"""After a model is loaded, the laws of its kernels are tried in the background, and nothing stays
running."""

import os
import sys
from contextlib import closing, suppress

import psutil
import pytest

from conformance.support.child import output_of
from conformance.support.rooms import ROOT
from engine.engine import Engine
from kernels.background import Background
from kernels.certificates import Store
from kernels.dispatch import Dispatcher, KernelSpec
from kernels.table import find

ADD = "add/cpu/generic"


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    return tmp_path


def test_loads_are_certified_quick_then_full(own_cache):
    """Certificates of the load are stored, and the laws are tried in the background."""
    dispatcher = Dispatcher(Store(), limits={"tokens": 700})
    dispatcher.choose([KernelSpec("add", None, (("width", 5632),))])
    loaded = Store().get(find(ADD))
    with closing(Background(dispatcher.serving)) as background:
        background.wait()
    proved = Store().get(find(ADD))
    assert (loaded.level, proved.level) == ("quick", "full")
    assert proved.shapes == loaded.shapes
    assert proved.cases > loaded.cases


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such priority")
def test_background_trials_have_the_lowest_priority(own_cache):
    """It and its children have the lowest priority, and end with it."""
    with closing(Background([ADD])) as background:
        process = psutil.Process(background.pid)
        while not (children := process.children()):
            assert process.status() != psutil.STATUS_ZOMBIE
        both = [process, *children]
        assert {os.sched_getscheduler(one.pid) for one in both} == {os.SCHED_IDLE}
    _, alive = psutil.wait_procs(both, timeout=10)
    assert not alive


ABANDONED = """
import os, sys
from kernels.background import Background
print(Background(sys.argv[1:]).pid, flush=True)
os._exit(0)
"""


def test_background_trials_end_with_their_parent(own_cache):
    """Even if its parent had no time to close it."""
    said = output_of(ABANDONED, ADD, cwd=ROOT)
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int(said)).wait(timeout=10)
    assert Store().get(find(ADD)) is None


def test_background_trials_end_with_the_model():
    """They try the model's kernels, and end with the model."""
    before = set(psutil.Process().children())
    with Engine.load("story", background=True) as engine:
        begun = set(psutil.Process().children()) - before  # those that compile, too, if it is cold
        (process,) = (p for p in begun if "kernels.background" in p.cmdline())
        named = process.cmdline()
        assert {step.kernel.name for step in engine.model.steps} <= set(named)
    assert not process.is_running()
