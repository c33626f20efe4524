"""A slowdown is found, noise is not, and incomparable runs are reported."""

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench import compare
from bench.child import ChildError
from bench.compare import Compared, measured, stored
from bench.ops.cases import BenchCase
from bench.race.ratio import Ratio
from bench.race.results import Measurement
from bench.tests.support.programs import ASSAY, ROOT
from bench.tests.support.programs import run as run_python
from bench.tests.support.synthetic import kernels_of_a_run, run_of
from bench.trees import Side, TreeError, side
from kernels.table import find

NAMES = ("add", "relu", "rms_norm", "swiglu", "geglu", "reglu", "silu", "gelu", "scale", "softmax")
CASES = [(BenchCase(find(f"{name}/cpu/generic"), {"tokens": 1}, ()), "hot") for name in NAMES]
SLOW = "swiglu/cpu/generic"


class Machine:
    """Stands in for children of `bench.compare`: kernels take a millisecond, more on a slow side.

    Its clock drifts for all alike, memory is luckier at one time than another, and samples have a
    tail; how much slower a kernel is on a side is `slower[folder, kernel]`.
    """

    def __init__(self, seed, slower=()):
        self.rng = np.random.default_rng(seed)
        self.slower = dict(slower)
        self.drift, self.asked, self.started, self.open = 0.0, [], 0, 0
        self.digests, self.paces = {}, {}

    def child(self, _home, _threads, env):
        return Fake(self, env["PYTHONPATH"])


class Fake:
    def __init__(self, machine, folder):
        self.machine, self.folder = machine, folder
        machine.started += 1
        self.pace = machine.paces.get((machine.started - 1) % 3, 1.0)  # of this process

    def __enter__(self):
        self.machine.open += 1
        return self

    def __exit__(self, *exception):
        self.machine.open -= 1

    def ask(self, method, **asked):
        m = self.machine
        if method == "kernels":
            found = m.digests.get(self.folder, {f"{n}/cpu/generic": self.folder for n in NAMES})
            if isinstance(found, Exception):
                raise found
            return found
        if method == "prepare":
            self.kernel, self.luck = asked["kernel"], m.rng.normal(0, 0.01)
            m.asked.append((m.started, self.folder, self.kernel))
            return None
        m.drift = 0.95 * m.drift + m.rng.normal(0, 0.02)
        pace = self.pace * m.slower.get((self.folder, self.kernel), 1.0)
        return 1e-3 * pace * np.exp(m.drift + self.luck) * (1 + m.rng.exponential(0.02))


A, B = Side("before", Path("/a")), Side("after", Path("/b"))


def run(monkeypatch, machine, cases=CASES, **options):
    monkeypatch.setattr(compare, "Child", machine.child)
    found = measured(A, B, cases, 2, **options)
    assert not machine.open
    return found


def verdicts(found, verdict):
    return [row.title for row in found.rows if row.verdict == verdict]


def test_the_same_is_the_same(monkeypatch):
    """Of ten comparisons of a tree with itself, or of stored runs of the same code, at least nine
    find nothing at all."""
    measured_now = [run(monkeypatch, Machine(seed)) for seed in range(10)]
    kept = [stored(stored_run(2 * i), stored_run(2 * i + 1)) for i in range(10)]
    for many in (measured_now, kept):
        assert sum(len(verdicts(found, "same")) == len(found.rows) for found in many) >= 9


def test_a_fifth_slower_is_found(monkeypatch):
    """A kernel that is 20% slower is named, it alone, and with it the way back is faster."""
    title = [f"{SLOW} tokens=1 hot"]
    for seed in range(5):
        found = run(monkeypatch, Machine(seed, {("/b", SLOW): 1.2}))
        assert [row.title for row in found.slower] == title
        assert found.slower[0].ratio.value == pytest.approx(1.2, abs=0.08)
        back = run(monkeypatch, Machine(seed, {("/a", SLOW): 1.2}))
        assert (list(back.slower), verdicts(back, "faster")) == ([], title)


def test_what_does_not_come_again_does_not_count(monkeypatch):
    """A slowdown in the first processes only is no regression."""
    machine = Machine(1, {("/b", SLOW): 1.2})
    real = machine.child

    def child(*arguments, **options):
        if machine.started == 3:
            machine.slower.clear()
        return real(*arguments, **options)

    monkeypatch.setattr(machine, "child", child)
    assert not run(monkeypatch, machine).slower
    assert machine.started == 6


def test_noise_is_what_a_is_from_itself(monkeypatch):
    """If a second process of A is 30% off the first, 20% between A and B mean nothing."""
    machine = Machine(6, {("/b", SLOW): 1.2})
    machine.paces = {2: 1.3}
    found = run(monkeypatch, machine)
    assert all(row.floor > 1.2 for row in found.rows)
    assert not found.slower


def test_sides_take_turns(monkeypatch):
    """Every block gives all three processes fresh memory for the case, one after another."""
    machine = Machine(2)
    run(monkeypatch, machine, CASES[:1])
    folders = [folder for _, folder, _ in machine.asked]
    assert folders[: 3 * compare.BLOCKS] == ["/a", "/b", "/a"] * compare.BLOCKS


def test_same_sources_are_not_measured(monkeypatch):
    """Kernels with the same digest on both sides are counted, and measured only if all have."""
    machine, told = Machine(3), []
    same = {f"{name}/cpu/generic": "same" for name in NAMES}
    machine.digests = {"/a": same, "/b": {**same, SLOW: "other"}}
    found = run(monkeypatch, machine, progress=lambda *done: told.append(done))
    assert [row.title for row in found.rows] == [f"{SLOW} tokens=1 hot"]
    assert (found.same_code, told[0]) == (len(NAMES) - 1, (1, 1))
    assert len(run(monkeypatch, machine, everything=True).rows) == len(NAMES)
    machine.digests["/b"] = same
    nothing = run(monkeypatch, machine)
    assert (nothing.rows, nothing.slower, nothing.same_code) == ((), (), len(NAMES))


def test_what_one_side_lacks_is_told(monkeypatch):
    """A kernel that only one side has is named once and not measured; a tree that cannot be
    imported is named, with the reason."""
    machine = Machine(4)
    machine.digests = {"/b": {f"{name}/cpu/generic": "b" for name in NAMES if name != "add"}}
    found = run(monkeypatch, machine, [*CASES, (CASES[0][0], "cold")])
    assert found.unmatched == ("add/cpu/generic",)
    assert len(found.rows) == len(NAMES) - 1
    machine.digests = {"/b": ChildError('worker, asked ["kernels", {}]: it ended: SyntaxError')}
    with pytest.raises(TreeError, match=r"\Aafter does not run: it ended: SyntaxError\Z"):
        run(monkeypatch, machine)
    assert not machine.open


@pytest.mark.parametrize(
    ("value", "low", "high", "floor", "verdict"),
    [(1.2, 1.1, 1.3, 1.1, "slower"), (0.8, 0.7, 0.9, 1.1, "faster"), (1.2, 0.9, 1.3, 1.1, "same"),
     (1.2, 1.1, 1.3, 1.25, "same"), (0.8, 0.7, 0.9, 1.3, "same")],
)  # fmt: skip
def test_verdicts(value, low, high, floor, verdict):
    """Slower or faster only where the interval excludes 1 and the ratio is beyond the floor."""
    assert Compared("", 1.0, value, Ratio(value, low, high), floor).verdict == verdict


# Stored runs


def stored_run(seed, *arguments, **options):
    rows = kernels_of_a_run(seed, *arguments, **options)
    return replace(run_of(*rows), run=f"run{seed}")


@pytest.mark.parametrize("peer", [True, False])
def test_a_stored_slowdown_is_found(peer):
    """One kernel 20% slower than in the run before is named, it alone, and stands first."""
    found = stored(stored_run(1, peer=peer), stored_run(2, {"op7": 1.2}, peer=peer))
    assert [row.title for row in found.slower] == ["op7/cpu hot"]
    assert found.rows[0] is found.slower[0]
    assert not found.interleaved


EVERYONE = {f"op{i}": 1.2 for i in range(20)}
EXCUSES = {
    "peers are as much slower": lambda: (stored_run(1), stored_run(2, pace=1.2)),
    "all are, and no peer is there": lambda: (
        stored_run(1, peer=False), stored_run(2, EVERYONE, peer=False)
    ),
    "a case alone is 5% slower": lambda: (
        stored_run(1, count=1, peer=False), stored_run(2, {"op0": 1.05}, count=1, peer=False)
    ),
    "a second run of A is as slow": lambda: (
        stored_run(1), stored_run(2, {"op7": 1.2}), stored_run(3, {"op7": 1.25})
    ),
}  # fmt: skip


@pytest.mark.parametrize("excuse", EXCUSES)
def test_what_is_no_regression(excuse):
    """If the machine is to blame, or it is unknown, or A differs from itself by as much."""
    assert not stored(*EXCUSES[excuse]()).slower


def test_a_case_alone_may_be_slower():
    """By more than a tenth."""
    one = stored_run(1, count=1, peer=False)
    assert stored(one, stored_run(2, {"op0": 1.3}, count=1, peer=False)).slower


def test_what_only_one_run_has_is_listed():
    """Cases of one run alone are unmatched; peers, absences and few samples are no cases."""
    a, b = stored_run(1, count=3), stored_run(2, count=2)
    found = stored(a, b)
    assert found.unmatched == ("op2/cpu hot",)
    assert {row.title for row in found.rows} == {"op0/cpu hot", "op1/cpu hot"}
    few = replace(b, measurements=tuple(replace(m, samples=m.samples[:2]) for m in b.measurements))
    assert not stored(a, few).rows


def test_only_seconds_are_compared():
    """Twice the memory, or logits twice as far apart, are no slowdown; a stream is timed as a step
    already. Titles tell numbers of threads apart."""
    steps = Measurement("scaling", "pp512", model="m.gguf", threads=2, samples=(1.0, 1.1, 1.2))
    others = (
        replace(steps, bench="memory", unit="B"),
        replace(steps, bench="gap", contender="assay fast", unit="NMSE"),
        replace(steps, bench="stream", test="step"),
    )
    twice = [replace(row, samples=tuple(2 * s for s in row.samples)) for row in others]
    a, b = (replace(stored_run(1), measurements=(steps, *rows)) for rows in (others, twice))
    found = stored(a, b)
    assert [row.title for row in found.rows] == ["pp512 m.gguf scaling threads=2"]
    assert not found.unmatched


# A real repository


LOOP = "    for i in range(0, width, 16):\n"
# so much that a busy machine shows it: how little is found on a quiet one is tested further up
SLOWER = """\
    blocks = (width + 15) // 16
    for turn in range(2 * blocks):
        i = 16 * (turn % blocks)
        if turn == blocks:
            total = 0.0
"""


@pytest.fixture(name="tree", scope="module")
def _tree(tmp_path_factory):
    """The working tree as a repository: `base`, and `slow` (softmax does its rows twice)."""
    if not shutil.which("git"):
        pytest.skip("there is no git")
    folder = tmp_path_factory.mktemp("tree")
    leave = shutil.ignore_patterns("__pycache__", "*.gguf")
    for room in ("reference", "kernels", "engine", "bench", "data"):
        shutil.copytree(ROOT / room, folder / room, ignore=leave)
    shutil.copytree(ROOT / "data" / "models", folder / "data" / "models", dirs_exist_ok=True)
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / ".gitignore").write_text("__pycache__\n")
    kernel = folder / "kernels" / "cpu" / "softmax.py"
    plain = kernel.read_text()
    for tag, text in (("slow", plain.replace(LOOP, SLOWER, 1)), ("base", plain)):
        kernel.write_text(text)
        git(folder, "init", "-q")
        git(folder, "add", "-A")
        git(folder, "-c", "user.name=x", "-c", "user.email=x@y", "commit", "-qm", tag)
        git(folder, "tag", tag)
    return folder


def git(folder, *words):
    subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True, timeout=60)


def test_a_slower_commit_is_found(tree):
    """A commit whose softmax does its middle pass twice: exit 1, and that kernel is named."""
    words = "--op", "softmax", "--tokens", "512", "--threads", "1", "--json"
    done = run_python(tree / "results", *ASSAY, "compare", "base", "slow", *words, room=tree)
    assert done.returncode == 1, done.stderr + done.stdout[-600:]
    found = json.loads(done.stdout)
    slow = [row for row in found["cases"] if row["verdict"] == "slower"]
    assert [row["case"].split()[0] for row in slow] == ["softmax/cpu/generic"]
    assert 1.3 < slow[0]["ratio"] < 3
    assert found["interleaved"]


@pytest.mark.parametrize("name", ["nonsense", "", "--help", "HEAD:README.md"])
def test_no_such_commit_is_told(name):
    """What is neither run, commit nor variant is one line."""
    with (
        pytest.raises(TreeError, match="no stored run, commit or variant is called so"),
        side(name),
    ):
        pass


def test_a_variant_stands_for_the_others():
    """A side by variant uses that variant of every kernel."""
    with side("scalar") as found:
        assert found.folder == ROOT
        assert found.kernel(find("linear/cpu/generic/Q4_0")) == "linear/cpu/scalar/Q4_0"
        assert found.kernel(find("rms_norm/cpu/generic")) == "rms_norm/cpu/scalar"
