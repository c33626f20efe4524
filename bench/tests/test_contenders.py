"""Contenders are timed at the same work, leave no state, and are shown if absent."""

import sys
import time
from dataclasses import replace

import numpy as np
import psutil
import pytest

from bench.child import ChildError
from bench.contenders import contender
from bench.contenders.contender import CONTENDERS, Array, Check, EngineTest, Entry, Setup, present
from bench.contenders.racer import Racer, enter
from bench.contenders.session import Session, token_ids
from bench.contenders.start import PARTS, drop, start
from bench.engine.engine_race import field_of
from bench.engine.profile import profile
from bench.race.experiment import ONCE, Rule
from engine import Engine
from engine.embedded import resolve

MODEL = resolve("story-f16")
SETUP = Setup(threads=2, context=128, batch=32, sequences=3)
PEERS = [name for name in CONTENDERS if name != "assay"]

PROMPT = EngineTest("pp", prompt=40)
DEEP_PROMPT = EngineTest("pp", prompt=40, depth=50)
STEPS = EngineTest("tg", generate=4)
DEEP_STEPS = EngineTest("tg", generate=4, depth=50)
BATCHED = EngineTest("batched", prompt=13, generate=3, parallel=3)
FIRST = EngineTest("first_token", prompt=10)
LOAD = EngineTest("load")
EVERY = (PROMPT, DEEP_PROMPT, STEPS, BATCHED, DEEP_STEPS, FIRST, LOAD)


@pytest.mark.parametrize("logits", [[1.0, np.nan, 2.0], [1.0, np.inf, 2.0], [3.0, 3.0, 3.0]])
def test_work_not_done_is_found(logits):
    """Logits that are not finite, or all equal, do not count as work."""
    with pytest.raises(ArithmeticError, match="the last logits are"):
        Check.of(np.array(logits, np.float32))


@pytest.fixture(name="session", scope="module")
def _session():
    session = Session("assay", MODEL, SETUP)
    yield session
    session.close()


@pytest.mark.parametrize("test", EVERY, ids=lambda test: test.name)
def test_assay_leaves_only_the_depth(session, test):
    """After a sample the cache holds only the tokens before the test."""
    for number in (1, 2):
        sample = session.sample(test, number)
        assert sample.seconds > 0
        assert (sample.check is None) == (test.kind == "load")
        cells = session._contender.engine.model.cells
        assert cells.capacity - cells.free == test.depth
        assert cells.lengths == [test.depth, 0, 0]
    if test is BATCHED:
        assert min(sample.parts.values()) > 0
        assert sum(sample.parts.values()) == pytest.approx(sample.seconds)


@pytest.mark.parametrize("test", EVERY[:5], ids=lambda test: test.name)
def test_logits_are_those_of_one_evaluation(session, test):
    """For any earlier runs and batches, a sample ends with the logits of its last sequence's tokens
    after its depth."""
    sample = session.sample(test, 5)
    assert session.sample(test, 6).check != sample.check
    model = session._contender.engine.model
    filling = np.random.default_rng(0).integers(0, model.config.vocab, SETUP.context, np.int32)
    tokens = [*filling[: test.depth], *token_ids(test, 5, model.config.vocab)[-1]]
    model.cells.clear()
    assert Check.of(model.evaluate(tokens, 0)) == sample.check
    model.cells.clear()


def test_a_cut_that_matters_is_found():
    """An engine whose logits depend on the split of a prompt is not timed."""
    session = Session("assay", MODEL, SETUP)
    honest = session._contender.evaluate

    def sloppy(tokens, start):
        slope: Array = np.arange(session._contender.vocab) * tokens.shape[1]
        return np.asarray(honest(tokens, start) + slope)

    session._contender.evaluate = sloppy
    with pytest.raises(ArithmeticError, match=r"pp40: logits differ by .* cut after 13 tokens"):
        session.sample(PROMPT, 1)
    session.close()


@pytest.fixture(name="assay", scope="module")
def _assay():
    with Racer("assay", MODEL, SETUP) as racer:
        yield racer


def test_a_racer_gives_what_the_session_measures(assay, session):
    """A separate process gives the same checks, for other tokens in every sample."""
    assert "assay" in assay.about
    checks = [assay.sample(BATCHED).check for _ in range(2)]
    assert checks == [session.sample(BATCHED, number).check for number in (1, 2)]
    assert checks[0] != checks[1]
    assert assay.sample(BATCHED, 1).check == checks[0]


def test_bad_questions_are_one_line(assay):
    """A test beyond the setup is refused, and the racer runs on."""
    with pytest.raises(ChildError, match=r"\App200 wants a context of 200 and 1 sequences"):
        assay.sample(EngineTest("pp", prompt=200))
    assert assay.sample(PROMPT).seconds > 0


def test_a_waiting_racer_uses_no_cpu(assay):
    """After an answer, a racer's threads sleep."""
    assay.sample(PROMPT)
    _demand_rest(assay)


def _demand_rest(racer):
    before = psutil.Process(racer.pid).cpu_times()
    time.sleep(0.4)
    after = psutil.Process(racer.pid).cpu_times()
    assert after.user + after.system - before.user - before.system <= 0.02


def test_our_own_engine_is_never_absent(tmp_path):
    """A missing file is an error, not an absence."""
    with pytest.raises(ChildError, match=r"nothing\.gguf"):
        enter("assay", tmp_path / "nothing.gguf", SETUP)


def test_what_is_not_installed_is_absent(monkeypatch):
    """A peer whose package is missing is shown absent, with instructions."""
    entry = Entry("bench.contenders.nobody:Nobody", {"no_such_package": "no-such"}, {})
    monkeypatch.setitem(contender.CONTENDERS, "nobody", entry)
    reason = "no-such is not installed: docs/peers.md says how"
    assert present("nobody") == reason
    assert enter("nobody", MODEL, SETUP) == reason


def test_a_peer_that_crashes_is_absent(monkeypatch, tmp_path):
    """A peer that takes its process down is shown absent, with the signal."""
    (tmp_path / "llama_cpp.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    absent = enter("llama.cpp", MODEL, SETUP)
    assert "it died of SIGILL" in absent


@pytest.fixture(name="peer", scope="module", params=PEERS)
def _peer(request):
    if reason := present(request.param):
        pytest.skip(reason)
    with Racer(request.param, MODEL, SETUP) as racer:
        yield racer


NEAR = {"assay fast": 1e-2}  # three bits fewer than F16 has, squared, on tokens of no text


def test_peers_do_the_same_work(peer, assay):
    """On the same tokens a peer's last logits are close to ours, whatever either has run before."""
    for number, test in enumerate((*EVERY, *reversed(EVERY)), 100):
        theirs, ours = peer.sample(test, number), assay.sample(test, number)
        assert theirs.seconds > 0
        if test.kind in ("load", "first_token"):
            continue
        assert theirs.check is not None
        assert ours.check is not None
        assert theirs.check.nmse(ours.check) < NEAR.get(peer.name, 1e-3)


def test_waiting_peers_use_no_cpu(peer):
    """Once it has answered, a peer's threads rest."""
    peer.sample(STEPS)
    _demand_rest(peer)


def test_peers_refuse_bad_files_in_one_line(peer, tmp_path):
    """A file that a peer cannot open makes it absent."""
    path = tmp_path / "damaged.gguf"
    path.write_bytes(MODEL.read_bytes()[:5000])
    absent = enter(peer.name, path, SETUP)
    assert isinstance(absent, str)
    assert "\n" not in absent


LIKE_LLAMA_BENCH = """#!{python}
import json, sys, time
said = dict(zip(sys.argv[1::2], sys.argv[2::2]))
print("a line that is no JSON")
if said["-n"] == "7":
    sys.exit("it cannot run seven")
rows = [dict(n_prompt=int(said["-p"]), n_gen=int(said["-n"]), samples_ns=[250_000_000])]
print(json.dumps(rows * (said["-t"] == "2")))
"""


def test_a_program_times_itself(tmp_path):
    """Any program with llama-bench's options takes part in the tests it supports, with its own
    times."""
    path = tmp_path / "other-bench"
    path.write_text(LIKE_LLAMA_BENCH.format(python=sys.executable))
    with pytest.raises(ValueError, match="want NAME=PROGRAM, a new name and a program that can be"):
        enter(f"other={path}", MODEL, SETUP)
    path.chmod(0o755)
    with field_of(MODEL, SETUP, ("assay", f"other={path}")) as field:
        rows = field.experiment(PROMPT).run(Rule(least=2, most=2))
        assert {row.contender: row.samples for row in rows}["other"] == (0.25, 0.25)
        rows = field.experiment(BATCHED).run(ONCE)
        assert {row.contender for row in rows} == {"assay"}
        rows = field.experiment(EngineTest("tg", generate=7)).run(ONCE)
        (note,) = {row.note for row in rows if row.contender == "other"}
        assert note == f"{path} ended with 1: it cannot run seven"
    absent = enter(f"other={path}", MODEL, replace(SETUP, threads=1))
    assert absent == f"{path} does not print llama-bench's JSON"


def test_a_start_is_the_sum_of_its_parts():
    """A fresh process reports the parts of the time to its first token."""
    drop(MODEL)
    told = start(MODEL, threads=2)
    assert list(told.parts) == list(PARTS)
    assert min(told.parts.values()) >= 0
    assert min(told.parts[part] for part in ("imports", "load", "prompt")) > 0
    assert sum(told.parts.values()) == pytest.approx(told.seconds)


def test_llama_cpp_with_weights_left_in_the_file():
    """Not repacked they give what they give otherwise, up to the kernels' rounding."""
    if reason := present("llama.cpp"):
        pytest.skip(reason)
    from bench.contenders.llama_cpp import LlamaCpp, LlamaCppMapped

    tokens = np.array([[1, 5, 9]], np.int32)
    found = []
    for kind in (LlamaCpp, LlamaCppMapped):
        contender = kind(resolve("story-q8_0"), Setup(1, context=32, batch=8))
        contender.hold(1, 0)
        found.append(Check.of(contender.evaluate(tokens, 0)[-1]))
        contender.close()
    repacked, mapped = found
    assert mapped.nmse(repacked) < 1e-3


def test_llama_cpp_holds_copies():
    """Of a text that it holds once more nothing changes; of a longer one the cells are there."""
    if reason := present("llama.cpp"):
        pytest.skip(reason)
    from bench.contenders.llama_cpp import LlamaCpp, repeated

    contender = LlamaCpp(resolve("story-f16"), Setup(1, context=64, batch=8))
    tokens = np.array([[1, 5, 9, 11, 4]], np.int32)

    def behind(length, begin):
        """The logits of a token after the held ones; the tokens after `begin` are removed again."""
        found = contender.evaluate(tokens[:, -1:], length)[-1]
        contender.hold(1, begin)
        return found

    contender.evaluate(tokens, 0)
    alone = behind(5, 5)
    contender.repeat(5)
    assert np.array_equal(behind(5, 5), alone)
    contender.repeat(40)
    assert contender.hold(1, 40) == 40
    assert not np.array_equal(behind(40, 40), alone)
    with pytest.raises(RuntimeError, match="not known here"):
        repeated(np.zeros(400, np.uint8), 5, 40)
    contender.close()


# Rows say what they ran with, so that two set-ups are never taken for one


def row_of(model, setup):
    with field_of(model, setup, ("assay",)) as field:
        (found,) = field.experiment(EngineTest("tg", generate=1)).run(ONCE)
    return found


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"sparse": "on", "threshold": 0.25}, "sparse=on,blocks=2/2,threshold=0.25"),
        ({"sparse": "on", "threshold": -1.0, "union": True},
         "sparse=on,blocks=2/2,threshold=-1,union"),
        ({"threshold": 0.25}, "sparse=auto,blocks=0/2"),  # too small for skipping to pay
        ({"sparse": "off"}, "sparse=off,blocks=0/2"),
    ],
)  # fmt: skip
def test_a_profile_says_how_it_ran(sparse_model, options, told):
    """Which blocks skipped neurons, and by which threshold; in the profile and all of its rows."""
    with Engine.load(sparse_model, threads=1, context=32, **options) as engine:
        found = profile(engine, depth=2, rule=ONCE)
    assert {m.settings for m in found.measurements()} == {told}


def test_a_race_says_how_it_ran(sparse_model):
    """What the contender's own process found is in its rows, after what holds for everyone; rows of
    other settings are not compared."""
    setup = Setup(1, context=32, kv_format="F32", sparse="on", threshold=0.5)
    sparse = row_of(sparse_model, setup)
    dense = row_of(sparse_model, Setup(1, context=32, sparse="off"))
    assert sparse.settings == "kv_format=F32,sparse=on,blocks=2/2,threshold=0.5"
    assert dense.settings == "sparse=off,blocks=0/2"
    assert sparse.key != dense.key
    assert sparse.settings in sparse.title
