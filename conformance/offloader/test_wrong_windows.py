"""Wrong neuron windows are detected: planted bugs, and every mutant of the source. Here the source
runs as plain Python, so that each takes a moment and no compiler."""

import signal
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from conformance.mutants.mutate import mutants
from conformance.support.neuron_window import AgainstDicts
from kernels.cpu.runtime import neuron_window

SOURCE = Path(neuron_window.__file__).read_text()
# seconds of the processor for a call that takes less than a thousandth; a broken ring has no end
PATIENCE = 0.2
PLANTED = tomllib.loads(Path(__file__).with_name("wrong_windows.toml").read_text())


def interpreted(source: str) -> SimpleNamespace:
    """The module as plain Python: calls take the window instead of its address, and time out."""
    names: dict[str, Any] = {"__name__": "interpreted_window"}
    exec(compile(source, "interpreted_window", "exec"), names)
    names |= {name: f.py_func for name, f in names.items() if hasattr(f, "py_func")}
    names["arguments"] = lambda window, _: window.state
    return SimpleNamespace(
        **names | {name: with_timeout(names[name]) for name in ("want", "forget")}
    )


def with_timeout(call: Callable[..., Any]) -> Callable[..., Any]:
    """The call, ended by SIGPROF if it takes too long."""

    def timed(*arguments: Any) -> Any:
        signal.setitimer(signal.ITIMER_PROF, PATIENCE)
        try:
            return call(*arguments)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    return timed


@contextmanager
def raise_timeout() -> Iterator[None]:
    """SIGPROF raises an error."""

    def give_up(*_: object) -> None:
        raise TimeoutError("this window goes round in circles")

    before = signal.signal(signal.SIGPROF, give_up)
    try:
        yield
    finally:
        signal.signal(signal.SIGPROF, before)


def failure(source: str) -> Exception | None:
    """How a window of this source fails the state machine that the real one passes."""

    class Interpreted(AgainstDicts):
        tried = interpreted(source)

        def handle(self) -> Any:
            return self.window

    quick = settings(
        max_examples=200,
        stateful_step_count=20,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    try:
        with raise_timeout():
            run_state_machine_as_test(Interpreted, settings=quick)
    except Exception as error:
        return error
    return None


def test_the_unchanged_source_passes():
    """The changes are what is rejected, not running as Python."""
    assert failure(SOURCE) is None


@pytest.mark.parametrize("edits", PLANTED.values(), ids=PLANTED)
def test_wrong_windows_are_rejected(edits, record_property):
    """No planted bug passes."""
    source = SOURCE
    for old, new in edits:
        assert old in source
        source = source.replace(old, new)
    found = failure(source)
    record_property("planted", (f"neuron_window: {edits}", found is not None))
    assert found is not None


@pytest.mark.exhaustive
def test_every_mutant_is_rejected():
    """No mutant of this source passes."""
    changed = list(mutants("kernels/cpu/runtime/neuron_window.py", SOURCE))
    assert len(changed) > 100
    survivors = [str(m) for m in changed if failure(m.source(SOURCE)) is None]
    assert not survivors, "\n".join(survivors)
