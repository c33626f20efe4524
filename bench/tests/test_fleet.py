"""A fleet: the same bits as a local run, with workers that die; refusals are one line, and nothing
is left running."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from typer.testing import CliRunner

from bench.fleet import suite, worker
from bench.fleet.files import Named
from bench.fleet.matrix import Matrix, states
from bench.fleet.simulation import simulated
from bench.fleet.worker import CorruptedError, Sealed
from bench.shell.fleet import fleet as program
from bench.tests.support.programs import interrupted, shell
from engine.shell import batch, embed, imatrix, perplexity
from kernels.certificates import Certificate

pytest.importorskip("distributed", reason="no Dask: pip install 'assay[fleet]'")

from bench.fleet.cluster import FleetError, local
from bench.fleet.distribution import Fleet
from bench.fleet.shares import Model, Perplexity
from engine.embedded import resolve
from engine.shell.command_line.options import Loading
from engine.shell.perplexity import read_text

CONTEXT = 64
TEXT = "Once upon a time there was a little girl who lived in a house by the wood. " * 60
PROMPTS = [{"prompt": f"Once {word}"} for word in ("upon", "there", "a", "in")]
PROMPTS += [{"messages": "none"}, {"prompt": "The", "params": {"seed": 3, "temperature": 1}}]
PAIRS = [{"prompt": "Once upon", "continuation": " a time"}, {"prompt": "A", "continuation": " b"}]
WITHOUT = """
import sys
sys.modules["bench"] = None
from distributed.cli.dask_worker import main
main()
"""


@pytest.fixture(scope="module")
def cluster():
    """Two processes of Assay, which come again when they die."""
    with local(2) as found:
        found.wait_for_workers(2, timeout=60)
        yield found


@pytest.fixture
def workers(cluster):
    """Python's functions, on one worker or all; a worker's state is put back at the end."""
    from distributed import Client

    revived(cluster)
    with Client(cluster, set_as_default=False) as client:
        yield client
        client.run(restored)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A text, prompts and pairs."""
    folder = tmp_path_factory.mktemp("fleet")
    (folder / "text").write_text(TEXT)
    for name, lines in (("prompts", PROMPTS), ("pairs", PAIRS)):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def asked(cluster, *words):
    return CliRunner().invoke(program, [cluster.scheduler_address, *map(str, words)])


def spoil():
    """The worker's results arrive with a corrupted byte."""
    usual = Sealed.of.__func__

    def of(cls, worker, found):
        sealed = usual(cls, worker, found)
        return cls(worker, sealed.digest, sealed.payload[:-2] + b"!.")

    Sealed.usual, Sealed.of = Sealed.of, classmethod(of)


def other_sources():
    """The worker has other sources."""
    from bench.fleet import about

    about.usual, about.sources = about.sources, lambda: "others"


def cached_in(folder=None):
    """Where the worker keeps certificates; from here on, if one is given, in this folder."""
    from kernels.cache import cache_folder

    os.environ["ASSAY_CACHE"] = folder or str(cache_folder())
    return str(cache_folder())


def restored():
    from bench.fleet import about
    from kernels import provenance

    if hasattr(Sealed, "usual"):
        Sealed.of = Sealed.usual
    about.sources = getattr(about, "usual", about.sources)
    provenance.machine = getattr(provenance, "usual", provenance.machine)
    os.environ.pop("ASSAY_BITS", None)


def test_what_is_found_is_what_is_found_here(cluster, files, tmp_path):
    """Perplexity, importance matrices, vectors, answers and scores equal the local commands' to the
    last bit, and so do errors."""
    text, chunks = files / "text", ("-c", CONTEXT, "--chunks", 4)
    words = tuple(map(str, ("story", text, *chunks)))
    here = json.loads(shell(perplexity.perplexity, *words, "--json").stdout)
    there = json.loads(asked(cluster, "perplexity", *words, "--json").stdout)
    assert here.pop("seconds") != there.pop("seconds")
    assert here == there

    kept = str(tmp_path / "base")
    shell(perplexity.perplexity, *words, "--save-logits", kept, "--kv", "Q4_0")
    here = shell(perplexity.perplexity, *words, "--base", kept).output
    assert asked(cluster, "perplexity", *words, "--base", kept).output == here
    assert "mean KL divergence" in here

    out = [tmp_path / name for name in ("a.gguf", "b.gguf")]
    assert not shell(imatrix.imatrix, *words, "-o", str(out[0])).exit_code
    assert not asked(cluster, "imatrix", *words, "-o", out[1]).exit_code
    assert out[0].read_bytes() == out[1].read_bytes()

    words = "story", "-f", str(text), "--pooling", "none"
    assert asked(cluster, "embed", *words).output == shell(embed.embed, *words).output

    out = [tmp_path / name for name in ("a.jsonl", "b.jsonl")]
    words = "story", str(files / "prompts"), "-n", "6", "--temp", "0", "-o"
    here, there = shell(batch.batch, *words, str(out[0])), asked(cluster, "batch", *words, out[1])
    assert [sorted(path.read_text().splitlines()) for path in out[:1]] == [
        sorted(path.read_text().splitlines()) for path in out[1:]
    ]
    told = [  # progress is told on slow machines only
        [line for line in one.stderr.splitlines() if not line.startswith("assay: compiling")]
        for one in (here, there)
    ]
    assert told[0] == told[1]
    assert "prompts:5: " in there.stderr

    words = "score", "story", files / "pairs", "-o", tmp_path / "s"
    assert not asked(cluster, *words).exit_code
    lines = (tmp_path / "s").read_text()
    (tmp_path / "s").write_text(lines[:-9])  # as a killed program leaves it
    assert asked(cluster, *words).output.endswith("1 scores, and 1 from before\n")
    assert (tmp_path / "s").read_text() == lines
    from engine import Engine

    with Engine.load("story", threads=1) as engine:
        known = engine.score(*([pair[key] for pair in PAIRS] for key in ("prompt", "continuation")))
    found = [json.loads(line) for line in (tmp_path / "s").read_text().splitlines()]
    assert [tuple(one["logprobs"]) for one in found] == [one.logprobs for one in known]


class Dying(RuleBasedStateMachine):
    """Perplexity of a text, over and over, while workers are killed."""

    cluster, text, known = None, None, None

    def __init__(self):
        super().__init__()
        self.notes = []
        model = Model(Named.of(resolve("story")), Loading(context=CONTEXT, threads=1), outputs=40)
        self.job = Perplexity(model)
        self.fleet = Fleet(self.cluster.scheduler_address, self.notes.append, (model.file,))

    def teardown(self):
        self.fleet.close()

    @rule(after=st.integers(0, 7), which=st.sampled_from([(0,), (1,), (0, 1)]))
    def read(self, after, which):
        """All chunks, in order, and bits that are always the same; who died is told."""
        revived(self.cluster)
        chunks = [[chunk] for chunk in enumerate(self.text.passages())]
        before, digest = len(self.notes), hashlib.sha256()
        for number, (scores,) in self.fleet.deal(self.job, chunks):
            digest.update(number.to_bytes(4, "little") + scores.nll.tobytes())
            if number == after:
                there = sorted(self.fleet._client.run(os.getpid, on_error="ignore").values())
                killed = [there[one] for one in which if one < len(there)]  # one may be starting
                for pid in killed:
                    os.kill(pid, signal.SIGKILL)
        assert digest.hexdigest() == (type(self).known or digest.hexdigest())
        type(self).known = digest.hexdigest()
        told = [note for note in self.notes[before:] if "is gone" in note]
        assert len(killed) < 2 or told  # nobody else could have done the rest


def revived(cluster):
    """Two workers: a nanny whose worker dies while it starts gives up."""
    if len(cluster.scheduler_info["workers"]) < 2:
        cluster.scale(0)
        cluster.scale(2)
    cluster.wait_for_workers(2, timeout=30)


def test_a_damaged_result_is_told_and_done_again(workers):
    """Its worker is named, and after three gets no more work; the others do its share."""
    bad = next(iter(workers.scheduler_info()["workers"]))
    workers.run(spoil, workers=[bad])
    notes = []
    with Fleet(workers.scheduler.address, notes.append) as fleet:
        assert [*fleet.deal(doubled, range(40))] == [(n, 2 * n) for n in range(40)]
        assert bad not in fleet.machines
    (*damaged, last), late = notes[:4], notes[4:]
    assert len(damaged) == 3
    assert all(f"at {bad}: its result is not what it sent" in note for note in damaged)
    assert last.endswith(f"at {bad}: too many results were damaged: it gets no share")
    assert len(late) <= 1  # what was under way then
    assert all(note.startswith(f"{bad}: its result is not what it sent") for note in late)


def doubled(share, _):
    time.sleep(0.02)  # so that both have some
    return 2 * share


def test_a_worker_whose_bits_are_others_gets_no_share(workers):
    """A CPU of another kind takes part if its bits are the same, and is named otherwise."""
    other, usual = sorted(workers.scheduler_info()["workers"])
    for bits, accepted in (("these", {usual, other}), ("those", {usual})):
        workers.run(on_another_cpu, bits, workers=[other])
        notes = []
        with Fleet(workers.scheduler.address, notes.append) as fleet:
            fleet.agree(bits_here, None)
            assert {*fleet.machines} == accepted
            assert len([*fleet.deal(bits_here, range(9))]) == 9
        told = [f"at {other}: its bits are not those of" in note for note in notes]
        assert told == [True] * (bits == "those")


def bits_here(*_):
    return os.environ.get("ASSAY_BITS", "these")


def on_another_cpu(bits):
    """The worker's CPU is of a kind that is compared with the usual one, and has these bits."""
    from kernels import provenance

    provenance.usual = getattr(provenance, "usual", provenance.machine)
    provenance.machine = lambda: "z/another/0"
    os.environ["ASSAY_BITS"] = bits


def test_a_worker_that_hangs_is_left_out(workers, monkeypatch):
    """It is named, within seconds; the others continue, and closing does not wait for it."""
    monkeypatch.setattr("bench.fleet.distribution.ANSWER", 1.0)
    (hung, pid), _ = sorted(workers.run(os.getpid).items())
    os.kill(pid, signal.SIGSTOP)
    notes, begun = [], time.monotonic()
    try:
        with Fleet(workers.scheduler.address, notes.append) as fleet:
            assert hung not in fleet.machines
            assert [*fleet.deal(doubled, range(4))] == [(n, 2 * n) for n in range(4)]
    finally:
        os.kill(pid, signal.SIGCONT)
    assert time.monotonic() - begun < 15
    assert len(notes) == 1
    assert notes[0].endswith(f"at {hung}: it has not answered for 1 seconds: it gets no share")


def test_who_cannot_take_part_is_named(cluster, workers, tmp_path):
    """A worker without the package, with other sources, and one that cannot have the model: a line
    each, and the rest goes on."""
    (tmp_path / "model.gguf").write_bytes(b"something")
    with (tmp_path / "model.gguf").open("rb") as file:  # by a path that no other process has
        path, digest = f"/proc/self/fd/{file.fileno()}", hashlib.sha256(b"something").hexdigest()
        model, notes = Named(Path(path), digest, 9), []
        bad, good = sorted(workers.scheduler_info()["workers"])
        workers.run(other_sources, workers=[bad])
        words = "--no-nanny", "--name", "bare", cluster.scheduler_address
        with subprocess.Popen([sys.executable, "-c", WITHOUT, *words], stderr=-3) as bare:
            try:
                cluster.wait_for_workers(3, timeout=30)
                with Fleet(cluster.scheduler_address, notes.append, (model,)) as fleet:
                    assert [*fleet.machines] == [good]
                    assert [m.address for m, _ in fleet.everywhere(read_whole, model)] == [good]
            finally:
                bare.kill()
        assert len(notes) == 2, notes
        assert any(n.startswith("bare at ") and "it has no assay" in n for n in notes), notes
        assert any(f"at {bad}: assay's sources others instead of" in n for n in notes), notes

        workers.run(restored)
        usual = workers.run(cached_in)
        workers.run(cached_in, "/proc/nowhere", workers=[bad])
        with Fleet(cluster.scheduler_address, notes.append, (model,)) as fleet:
            assert [*fleet.machines] == [good]
        workers.run(cached_in, usual[bad], workers=[bad])
    assert f"at {bad}: " in notes[2]
    assert "cannot be sent there: /proc/nowhere" in notes[2]


def read_whole(model, _):
    return model.place.read_bytes() == b"something"


def test_a_scheduler_that_is_not_there():
    """One line, within seconds."""
    begun = time.monotonic()
    for address in ("tcp://127.0.0.1:1", "nonsense"):
        with pytest.raises(FleetError, match=f"^{address}: no Dask scheduler answers there: "):
            Fleet(address, print)
    assert time.monotonic() - begun < 5


def test_every_machine_is_tried(cluster, workers, tmp_path):
    """A machine is a host and a folder of certificates; its lines come back with its key, and the
    matrix has every kernel of the op."""
    one, other = sorted(workers.scheduler_info()["workers"])
    usual = workers.run(cached_in)
    workers.run(cached_in, str(tmp_path / "own"), workers=[one])
    words = "certify", "--op", "relu", "-o", tmp_path / "out", "--json"
    found = json.loads(asked(cluster, *words).stdout)
    workers.run(cached_in, usual[one], workers=[one])
    assert [row["machines"] for row in found["machines"]] == [2]
    assert all(
        state in ("fast", "proved") for row in found["kernels"].values() for state in row.values()
    )
    lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert len(lines) == 2 * len(found["kernels"])
    assert {line["worker"].split(" at ")[1] for line in lines} == {one, other}


def test_the_matrix_says_what_is_where():
    """The first that passed is fast, what failed is refused, and machines that differ are told."""
    names = [f"linear/cpu/{variant}/Q8_0" for variant in ("generic", "scalar")]
    good, bad = (
        [Certificate(name, "", "full", 1, 0, 0, 0, "", failure) for name, failure in said]
        for said in (zip(names, ("", "")), zip(names, ("wrong", "")))  # noqa: B905
    )
    assert states(good) == {names[0]: "fast", names[1]: "proved"}
    assert states(bad) == {names[0]: "refused", names[1]: "fast"}
    matrix = Matrix()
    for said in (good, good, bad):
        matrix.add("kind", "CPU", states(said))
    assert matrix.frame()["kind"].to_dict() == {names[0]: "refused", names[1]: "proved"}
    assert matrix.differing() == [(names[0], "kind", {"fast": 2, "refused": 1})]


def test_tests_are_dealt_out(monkeypatch, tmp_path):
    """Each has its outcome, failures their replay lines; one that crashes pytest is an error, and
    those after it are run."""
    (tmp_path / "conformance").mkdir()
    (tmp_path / "conformance/test_some.py").write_text(
        "import os, pytest\n"
        "def test_right(): pass\n"
        "def test_wrong(): assert False, 'python -m pytest this --again'\n"
        "def test_dies(): os.kill(os.getpid(), 9)\n"
        "@pytest.mark.skip\ndef test_not(): pass\n"
        "def test_behind(): assert 0\n"
    )
    monkeypatch.setattr(suite, "root", lambda: tmp_path)
    tests = suite.cases(["conformance"])
    assert [len(share) for share in suite.shares(tests, 3)] == [3, 2]
    found = {case.test.partition("::")[2]: case for case in suite.run(tests, "")}
    assert {name: case.outcome for name, case in found.items()} == {
        "test_right": "passed", "test_wrong": "failed", "test_dies": "error", "test_not": "skipped",
        "test_behind": "failed",
    }  # fmt: skip
    assert found["test_wrong"].replay.startswith("python -m pytest this --again")
    assert found["test_behind"].replay == f"python -m pytest '{tests[-1]}'"


def test_ctrl_c_leaves_nothing_running(tmp_path):
    """The program says so in one line, and its workers are gone with it."""
    (tmp_path / "text").write_text(TEXT * 40)
    words = "fleet", "--local", "2", "perplexity", "story", str(tmp_path / "text"), "-t", "1"
    found = interrupted(tmp_path, ("-c", STARTED, *words), 3)  # with a tracker of resources
    assert found == (1, "", "assay: interrupted\n")


def test_what_is_not_wanted_any_more_ends():
    """A worker's child process, with its group, when its caller has stopped."""
    threading.Timer(0.5, worker.stop, ["this"]).start()
    begun = time.monotonic()
    with pytest.raises(worker.StoppedError):
        worker.child(("-c", "import time; time.sleep(60)"), "this")
    assert time.monotonic() - begun < 10


STARTED = """
import sys
from bench.shell.fleet import fleet
from engine.shell import program, main
if "fleet" not in {group.name for group in program.app.registered_groups}:
    program.app.add_typer(fleet, name="fleet")
if __name__ == "__main__":
    main()
"""


def test_results_are_merged_in_bounded_memory():
    """However many machines say something: in memory is a cell of at most a kilobyte for each
    kernel and kind, and a message or two; the certificates would be 7 MB, 600 bytes each."""
    found = simulated(60, 2, 12_000)
    assert found["results"] >= 12_000
    assert found["peak"] <= 1024 * found["cells"] + 20 * found["largest"] < 2_000_000
    with pytest.raises(CorruptedError):
        Sealed("worker", "0" * 64, b"").opened()


def test_whoever_dies_changes_no_bit(cluster, files):
    """Workers are killed in the middle of a text, one or both; others, or their replacements,
    repeat their shares."""
    runs, rounds = (4, 4) if os.environ.get("ASSAY_DEEP") else (1, 2)
    Dying.cluster = cluster
    Dying.text, _ = read_text("story", files / "text", CONTEXT, None, None)
    slow = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    chosen = settings(
        deadline=None, max_examples=runs, stateful_step_count=rounds, derandomize=True,
        suppress_health_check=slow, database=None, phases=[Phase.generate],
    )  # fmt: skip
    run_state_machine_as_test(Dying, settings=chosen)
