"""Saved sessions continue bit for bit, and damaged ones are refused."""

import errno
import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance.support import refusals
from conformance.support.child import python
from conformance.support.files.full_disk import full_after
from conformance.support.models.small_models import Small
from conformance.support.program import printed
from engine import Engine, SamplingParams
from engine.atomic_write import OutputError
from engine.cache.session import SessionError, restore, save
from reference.op import Array

SMALL = Small(format="Q4_0", kv_heads=1, seed=9)
PROMPT = [1, 5, 8, 13, 21, 34, 55]
OPTIONS: dict[str, Any] = {"threads": 1, "context": 64, "sequences": 2}
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 1.1, "top_p": 0.95, "seed": 3},
    "unseeded": {"temperature": 1.1},
    "penalised": {"temperature": 0.9, "seed": 3, "frequency_penalty": 0.7,
                  "repetition_penalty": 1.3, "presence_penalty": 0.2},
    "dry": {"temperature": 0.9, "seed": 3, "dry_multiplier": 2.0, "dry_sequence_breakers": [7]},
    "mirostat 1": {"mirostat": 1, "seed": 3, "mirostat_tau": 3.0},
    "mirostat 2": {"mirostat": 2, "seed": 3, "mirostat_tau": 3.0},
}  # fmt: skip
DAMAGED = ("not a session file", "the session is truncated or damaged")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return SMALL.write(tmp_path_factory.mktemp("session") / "small.gguf")


@pytest.fixture
def engine(model):
    with Engine.load(model, **OPTIONS) as loaded:
        yield loaded


@pytest.fixture
def other_engine(model):
    """Another engine, of another size, whose cells are out of order."""
    with Engine.load(model, **{**OPTIONS, "threads": 2, "context": 50, "batch": 4}) as loaded:
        list(loaded.stream(range(3, 30), SamplingParams(n=2, max_tokens=5, seed=1)))
        yield loaded


@pytest.fixture
def saved(engine, tmp_path):
    """A session of a few tokens."""
    list(engine.stream(PROMPT, SamplingParams(max_tokens=4, temperature=0)))
    path = tmp_path / "talk.session"
    save(engine, path)
    return path


def drawn(
    engine: Engine, prompt: list[int], count: int, resume: bool = False, **params: Any
) -> list[tuple[int, bytes]]:
    """The sampled tokens, each with the bits of its logits."""
    seen: list[bytes] = []

    def note(_: list[int], logits: Array) -> Array:
        seen.append(logits.tobytes())
        return logits

    asked = SamplingParams(max_tokens=count, ignore_eos=True, logits_processors=[note], **params)
    tokens = [piece.token for piece in engine.stream(prompt, asked, resume=resume)]
    return list(zip(tokens, seen, strict=True))


def refusal(engine: Engine, path: Path) -> str:
    """The error line for the session; the engine keeps its state."""
    before = list(engine.text.held), list(engine.text.drawn), engine.sampler_state
    line = refusals.refusal(SessionError, path, restore, engine, path)
    assert (list(engine.text.held), list(engine.text.drawn), engine.sampler_state) == before
    return line


@pytest.mark.parametrize("params", SAMPLING.values(), ids=SAMPLING.keys())
def test_resumed_generation_equals_an_uninterrupted_one(engine, other_engine, tmp_path, params):
    """Saved after some tokens and restored elsewhere, a generation samples the same tokens from the
    same bits, and evaluates nothing twice."""
    path = tmp_path / "talk.session"
    begun = drawn(engine, PROMPT, 6, **params)
    save(engine, path)
    going_on = drawn(engine, PROMPT + [token for token, _ in begun], 9, resume=True, **params)
    tokens = restore(other_engine, path)
    assert tokens == PROMPT + [token for token, _ in begun]
    assert drawn(other_engine, tokens, 9, resume=True, **params) == going_on
    assert other_engine.timings.prompt.tokens == 1
    if "unseeded" not in params and ("seed" in params or params["temperature"] == 0):
        engine.reset()
        assert drawn(engine, PROMPT, 15, **params) == begun + going_on


def test_a_generation_is_saved_at_any_token(engine, other_engine, tmp_path):
    """A generation left at any token is saved with all tokens that it returned."""
    params = SamplingParams(temperature=0, max_tokens=12)
    whole = [piece.token for piece in engine.stream(PROMPT, params)]
    for count in (1, 2, 7):
        engine.reset()
        running = engine.stream(PROMPT, params)
        given = [next(running).token for _ in range(count)]
        running.close()
        save(engine, tmp_path / "talk.session")
        tokens = restore(other_engine, tmp_path / "talk.session")
        assert tokens == PROMPT + given
        rest = other_engine.stream(tokens, replace(params, max_tokens=12 - count), resume=True)
        assert given + [piece.token for piece in rest] == whole


def test_an_empty_session_is_saved(engine, other_engine, tmp_path):
    """An engine without a text saves an empty session."""
    save(engine, tmp_path / "empty.session")
    assert restore(other_engine, tmp_path / "empty.session") == []
    assert drawn(other_engine, PROMPT, 4, temperature=0.0) == drawn(
        engine, PROMPT, 4, temperature=0.0
    )


def test_saving_a_restored_session_gives_the_same_file(other_engine, saved, tmp_path):
    """Restoring and saving gives the file back, byte for byte."""
    restore(other_engine, saved)
    save(other_engine, tmp_path / "again.session")
    assert (tmp_path / "again.session").read_bytes() == saved.read_bytes()


def test_cells_of_a_failed_step_are_not_saved(engine, saved, tmp_path):
    """Cells beyond the held tokens, as after an interrupted step, are not in the file."""
    engine.model.cells.place([len(engine.text.held)], [(0,)])
    save(engine, tmp_path / "again.session")
    assert (tmp_path / "again.session").read_bytes() == saved.read_bytes()


def test_other_models_are_refused(saved, model, tmp_path):
    """A session goes on with the model that made it, wherever its file lies, and with no other."""
    copy = shutil.copy(model, tmp_path / "copy.gguf")
    with Engine.load(copy, **OPTIONS) as same:
        assert restore(same, saved)[: len(PROMPT)] == PROMPT
    for changed in (replace(SMALL, seed=10), replace(SMALL, format="Q8_0")):
        with Engine.load(changed.write(tmp_path / "other.gguf"), **OPTIONS) as engine:
            assert refusal(engine, saved) == "this session is of another model"


def test_other_caches_are_refused(saved, model):
    """Another cache format, or a context too small, is refused with both values."""
    with Engine.load(model, **OPTIONS, kv_format="F32") as engine:
        assert refusal(engine, saved) == "its cache is in F16, the engine's in F32"
    with Engine.load(model, **{**OPTIONS, "context": 9}) as engine:
        assert refusal(engine, saved) == "it holds 10 tokens, the context 9"


def test_truncated_sessions_are_refused(engine, saved):
    """A file that lacks bytes at its end is refused."""
    for size in reversed(range(saved.stat().st_size)):
        os.truncate(saved, size)
        assert refusal(engine, saved) in DAMAGED


def test_damaged_sessions_are_refused(engine, saved):
    """A file with a flipped bit, or with bytes added, is refused."""
    whole = saved.read_bytes()
    with saved.open("r+b", buffering=0) as file:
        for i, byte in enumerate(whole):
            os.pwrite(file.fileno(), bytes([byte ^ 1 << i % 8]), i)
            assert refusal(engine, saved) in DAMAGED
            os.pwrite(file.fileno(), bytes([byte]), i)
        assert restore(engine, saved)
        os.pwrite(file.fileno(), b"\0", len(whole))
        assert refusal(engine, saved) in DAMAGED


def fail_fsync(_: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_full_disk_leaves_the_old_file(engine, saved, monkeypatch):
    """A session that cannot be written leaves the previous one, and no other file."""
    before = saved.read_bytes()
    list(engine.stream(PROMPT[:3], SamplingParams(max_tokens=9)))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail_fsync)
        with pytest.raises(OutputError, match="no space left"):
            save(engine, saved)
    with full_after(100), pytest.raises(OutputError, match="too large"):
        save(engine, saved)
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


KILLED = """
import os, signal, sys
from pathlib import Path
from engine import Engine, SamplingParams
from engine.cache.session import save
Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
with Engine.load(sys.argv[1], threads=1) as engine:
    list(engine.stream([3, 4, 5], SamplingParams(max_tokens=2)))
    save(engine, sys.argv[2])
"""


def test_killed_before_the_rename(engine, model, saved):
    """A process killed after writing, before the rename, leaves the old session whole."""
    before = saved.read_bytes()
    done = python(KILLED, model, saved)
    assert done.returncode == -signal.SIGKILL
    assert saved.read_bytes() == before
    assert restore(engine, saved)


def test_session_of_the_program(inside, model, tmp_path):
    """`assay run --session` twice gives the tokens of one run twice as long."""
    usual = ("run", model, "--json", "--seed", "1", "-t", "1", "--ignore-eos")

    def run(*options: str) -> list[int]:
        return json.loads(printed(inside(*usual, *options)))["tokens"]

    talk = str(tmp_path / "talk.session")
    whole = run("-p", "7 8", "-n", "12")
    assert run("-p", "7 8", "-n", "5", "--session", talk) == whole[:5]
    assert run("-p", "", "-n", "7", "--session", talk) == whole[5:]
