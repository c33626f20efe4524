"""Assay's pytest plugin, in a fresh repository with packages named like our rooms."""

import json
import re

import pytest

from conformance.support.child import output_of
from conformance.support.installed import environment, place_assay

pytest_plugins = ("pytester",)

NORM = """
import numpy as np

def right(x, weight, eps):
    wide = x.astype(np.float64)
    factor = 1 / np.sqrt((wide * wide).mean(-1, keepdims=True) + eps)
    return (wide * factor * weight).astype(np.float32)

def wrong(x, weight, eps):
    return 2 * right(x, weight, eps)
"""
IN_C = """
#include <math.h>

void relu(const float *x, float *out, long tokens, long width) {
    for (long i = 0; i < tokens * width; i++) out[i] = x[i] > 0 || isnan(x[i]) ? x[i] : 0;
}
"""
FIXTURE = """
import kernels, pytest

@pytest.mark.parametrize("name", ["right", "wrong"])
def test_norm(assay_judge, name):
    assert kernels.ours
    report = assay_judge(getattr(kernels, name), op="rms_norm")
    assert (report["verdict"], report["op"]) == ("passed", "rms_norm")

def test_file(assay_judge):
    assay_judge("relu.c", op="relu", level="full")

def test_inner(assay_judge):
    def relu(x):
        return x
    assay_judge(relu, op="relu")
"""
LISTED = """
[tool.assay]
kernels = [
    {{ file = "kernels/__init__.py:right", op = "rms_norm" }},
    {{ file = "kernels/__init__.py:{second}", op = "rms_norm", numerics = "bf16" }},
]
"""
LOADED = """
import sys, pytest
assert pytest.main(["--collect-only", "-q"]) == pytest.ExitCode.NO_TESTS_COLLECTED
rooms = {m.partition(".")[0] for m in sys.modules}
print("assay_pytest" in rooms, *rooms & {"assay", "kernels", "reference", "numpy", "numba"})
"""


@pytest.fixture
def repository(pytester, tmp_path_factory, monkeypatch):
    """A repository of kernels, where Assay is installed."""
    installed = place_assay(tmp_path_factory.mktemp("installed"))
    for name, value in environment(installed).items():
        monkeypatch.setenv(name, value)
    pytester.makepyfile(**{"kernels/__init__": "ours = True\n" + NORM})
    pytester.makefile(".c", relu=IN_C)
    return pytester


def test_the_fixture_judges_functions_and_files(repository):
    """Right ones pass; a wrong one fails with its smallest case and the command that replays it,
    and a function that is in no file's top level with a line."""
    repository.makepyfile(test_ours=FIXTURE)
    done = repository.runpytest_subprocess("-q")
    done.assert_outcomes(passed=2, failed=2)
    said = done.stdout.str()
    assert re.search(r"__init__.py:wrong as rms_norm: wrong: (a second call: )?out\[", said)
    assert "smallest case found: tokens=1, hidden=1," in said
    assert f"again: assay judge {repository.path}/kernels/__init__.py:wrong --op rms_norm" in said
    assert "is no function of a module's top level" in said
    assert "During handling" not in said


def test_listed_kernels_are_judged_on_request(repository):
    """One test for each, selectable by -k, and none without --assay; each has its `numerics`."""
    repository.makepyfile(test_none="")
    repository.makepyprojecttoml(LISTED.format(second="right"))
    assert repository.runpytest_subprocess().ret == pytest.ExitCode.NO_TESTS_COLLECTED
    repository.runpytest_subprocess("--assay").assert_outcomes(passed=2)
    repository.makepyprojecttoml(LISTED.format(second="wrong"))
    repository.runpytest_subprocess("--assay", "-k", "right").assert_outcomes(passed=1)
    done = repository.runpytest_subprocess("--assay")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["*__init__.py:wrong as rms_norm: wrong: *", "again: assay judge *"])
    assert "Traceback" not in done.stdout.str()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "--assay wants this file"),
        ("[tool.assay\n", "pyproject.toml: "),
        ("[tool.other]\n", "[tool.assay] has no list kernels"),
        ("[tool.assay]\nkernels = [3]\n", "3 is no table of words"),
        ('[tool.assay]\nkernels = [{ file = "a.c" }]\n', "lacks 'op'"),
        ('[tool.assay]\nkernels = [{ file = "a.c", opp = "relu" }]\n', "'opp' is none of file, op"),
    ],
)
def test_invalid_settings_are_refused(repository, text, words):
    """The plugin refuses invalid settings as pytest does, in a line."""
    (repository.path / "pytest.ini").write_text("[pytest]\n")
    if text is not None:
        repository.makepyprojecttoml(text)
    done = repository.runpytest_subprocess("--assay")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in done.stderr.lines if line.startswith("ERROR: ")]
    assert words in line


def test_unknown_ops_and_files_fail_in_one_line(repository):
    """There is no such op, and no such file."""
    kernels = [{"file": "relu.c", "op": "rleu"}, {"file": "none.c", "op": "relu"}]
    rows = ", ".join(f'{{ file = "{k["file"]}", op = "{k["op"]}" }}' for k in kernels)
    repository.makepyprojecttoml(f"[tool.assay]\nkernels = [{rows}]\n")
    done = repository.runpytest_subprocess("--assay")
    done.assert_outcomes(failed=2)
    done.stdout.fnmatch_lines(["assay: *no op 'rleu'*", "assay: *none.c*"])


def test_unused_plugin_imports_nothing(repository):
    """pytest imports the plugin in every repository: it loads neither NumPy nor our rooms."""
    assert output_of(LOADED, cwd=repository.path).splitlines()[-1] == "True"
    text = "import sys, json, pytest, tomllib, subprocess; known = set(sys.modules)\n"
    text += "import assay_pytest; print(json.dumps(sorted(set(sys.modules) - known)))"
    assert json.loads(output_of(text)) == ["assay_pytest"]
