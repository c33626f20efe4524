"""`pytest bench/` and its options: measurements, files, and errors."""

import pytest

from bench.race.frames import load
from bench.race.results import read_folder
from bench.tests.support.programs import EVERY_PYTEST, PYTEST, run, what_all_say

CHOSEN = ("bench/test_ops.py", "-k", "rms_norm and generic")
STORY = ("--quick", "--models", "story")


def measure(folder, *words, **env):
    """Run pytest with these arguments, with results in a folder of the test's own."""
    return run(folder, *PYTEST, *words, **env)


@pytest.fixture(name="measured", scope="module")
def _measured(tmp_path_factory):
    """A measuring run: its folder, and its output."""
    folder = tmp_path_factory.mktemp("measured")
    done = measure(folder, "--benchmark", *STORY, *CHOSEN, "bench/tests/race/test_ratio.py")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done


def test_measuring_writes_and_tells(measured):
    """With --benchmark: pytest-benchmark's table, a file of results, and no tests of the lab."""
    folder, done = measured
    assert "benchmark 'rms_norm': 4 tests" in done.stdout  # tokens 1 and 8, cold and hot
    assert "Rounds" in done.stdout
    assert "test_interval" not in done.stdout
    (found,), complaints = read_folder(folder)
    assert not complaints
    assert str(found.path) in done.stdout
    assert {(m.shape, m.cache) for m in found.measurements} == {
        (f"tokens={tokens},hidden=256", cache) for tokens in (1, 8) for cache in ("cold", "hot")
    }
    for m in found.measurements:
        assert len(m.samples) >= 5
        assert m.checked >= 1
        assert 0 < m.median < 0.01
        assert m.share > 0
    assert found.limits["rates"]
    assert found.conditions.versions["numba"]
    assert len(load(folder)) == sum(len(m.samples) for m in found.measurements)


def test_without_the_flag_each_runs_once(tmp_path):
    """Every benchmark runs once, is checked, and nothing is written."""
    done = measure(tmp_path, *STORY, *CHOSEN, "-v", "--benchmark-json", str(tmp_path / "out.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 4
    assert "Rounds" not in done.stdout
    assert not list(tmp_path.glob("*.jsonl"))


NONSENSE = {
    "an axis of the shapes": (("--shapes", "{bad}"), "bad.toml: models.m has no axis 'colour'"),
    "a shape file": (("--shapes", "nope.toml"), "nope.toml: No such file or directory"),
    "a model": (("--models", "nope"), "no model is called 'nope': story, tinyllama-1.1b"),
    "threads": (("--threads", "-1"), "--threads is 0 to 256, got -1"),
    "many threads": (("--threads", "100000"), "--threads is 0 to 256, got 100000"),
    "patience": (("--most-seconds", "-1"), "--most-seconds is above 0, got -1"),
    "no patience": (("--most-seconds", "0"), "--most-seconds is above 0, got 0"),
    "a peer": (("--peers", "gpt"), "no peer is called 'gpt': assay, assay fast"),
    "an engine's model": (("--engine-model", "nope"), "nope: no such file or embedded model"),
    "an engine's file": (("--engine-model", "{bad}"), "bad.toml: header: this is not a GGUF file"),
    "a folder": (("--benchmark", "--results", "{bad}"), "bad.toml: File exists"),
}


QUIETLY = ("-p", "no:cacheprovider", "--collect-only", "-q", "bench/test_ops.py")


@pytest.fixture(name="told", scope="module")
def _told(tmp_path_factory):
    """The output for all of these lines, from one process: its imports take longer than the
    answers."""
    folder = tmp_path_factory.mktemp("nonsense")
    bad = folder / "bad.toml"
    bad.write_text("[models.m]\ncolour = 3\n")
    asked = {
        name: [*QUIETLY, *(word.format(bad=bad) for word in words)]
        for name, (words, _) in NONSENSE.items()
    }
    return what_all_say(folder / "results", EVERY_PYTEST, asked)


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_is_one_line(told, name):
    """An option with an unknown value: exit status 4, as in pytest, and one plain line."""
    code, out, err = told[name]
    assert code == pytest.ExitCode.USAGE_ERROR, out + err
    lines = [line for line in err.splitlines() if line]
    assert len(lines) == 1
    assert NONSENSE[name][1] in lines[0]
    assert "Traceback" not in out
