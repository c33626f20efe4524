"""DuoAttention: streaming heads see what the reference defines, and nothing else affects them."""

import json
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from conformance.llama.peers import duo
from conformance.llama.peers.compare import EXACT, demand_near, nmse
from conformance.llama.peers.export import export
from conformance.support.models.small_families import SUBJECTS
from conformance.support.models.small_models import Small
from conformance.support.sampled import GREEDY, sampled
from engine import DuoAttention, Engine
from engine.cache.session import SessionError
from engine.cache.streaming import ROLLBACK, StreamedError
from engine.errors import EngineError, ModelError
from engine.policies.retrieval import alphas, write
from engine.policies.table import format_policy, parse_policy
from reference.cache import policies
from reference.models.transformer import transformer

SMALL = Small(blocks=4, heads=6, kv_heads=3, seed=9, context=256)
PROMPT = np.random.default_rng(0).integers(3, 60, 120).tolist()
SINKS, RECENT, STRIDE = 4, 9, 5
# blocks where all heads keep all, where some do, and where none does
ALPHAS = np.array([[0.9, 0.8, 1.2], [0.7, 0.1, 0.6], [0.2, 0.7, 0.0], [-0.5, 0.3, 0.4]])
STREAM = np.array([[0, 0, 0], [0, 1, 0], [1, 0, 1], [1, 1, 1]], bool)


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    """Half of the heads stream."""
    path = tmp_path_factory.mktemp("heads") / "full_attention_heads.tsv"
    write(path, ALPHAS)
    return DuoAttention(SINKS, RECENT, STRIDE, heads=str(path))


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    path = SMALL.write(tmp_path_factory.mktemp("duo") / "small.gguf")
    return partial(Engine.load, path, threads=2, context=200, sequences=3)


@pytest.mark.parametrize("stride", [STRIDE, 1])
def test_streaming_heads_attend_as_in_the_reference(load, policy, stride):
    """Logits after every token are the formula's, in which the heads of the lowest numbers see only
    their sinks and window."""
    streams = policies.streaming_heads(ALPHAS, 0.5)
    assert (streams == STREAM).all()

    def attend(block, q, k, v):
        v = v.reshape(k.shape)
        return policies.duo_attention(q, k, v, streams[block], SINKS, RECENT, stride)

    wanted = transformer(np.array(PROMPT), *SMALL.tensors(), SMALL.shape(), attend=attend)
    with load(kv_policy=replace(policy, stride=stride), kv_format="F32") as engine:
        assert (engine.model.method.streaming == STREAM).all()
        assert nmse(engine.logits(PROMPT), wanted) < EXACT
    with load(kv_format="F32") as plain:
        assert nmse(plain.logits(PROMPT), wanted) > 1e6 * EXACT


def test_cells_outside_sinks_and_window_are_freed(load, policy):
    """Streaming heads hold only sinks and the latest cells, and other rows change no bit."""
    told = []
    for corrupted in (False, True):
        with load(kv_policy=policy) as engine:
            found = [sampled(engine, PROMPT)]
            model, method = engine.model, engine.model.method
            seen = method.rows_held.row_of[model.cells.list_of(0)]
            sees = policies.streaming_slots(len(seen), SINKS, RECENT, STRIDE)[:-1]
            needed = seen[sees]
            assert (needed >= 0).all()
            for name, rows in model.pages.items():
                assert rows.shape[1] == 2 * 16 * STREAM[int(name.split(".")[1])].sum()
                if corrupted:
                    rows[np.setdiff1d(np.arange(len(rows)), needed)] = 0xFF  # NaN
            found.append(sampled(engine, engine.text.held + engine.text.drawn + PROMPT[:20]))
            told.append(found)
            length = model.cells.lengths[0]
            begin = (length - RECENT) // STRIDE * STRIDE - ROLLBACK  # as of the last step
            assert (begin > SINKS, method.packed) == (True, held := SINKS + length - begin)
            heads, streaming = STREAM.size, STREAM.sum()
            row = 2 * 2 * 16  # bytes of a key and a value in F16
            assert engine.timings.cache == row * ((heads - streaming) * length + streaming * held)
    assert told[0] == told[1]


def test_short_texts_have_the_bits_of_full_attention(load, policy):
    """Texts within sinks and window, and models without streaming heads, keep all bits."""
    short = PROMPT[: SINKS + RECENT - GREEDY.max_tokens + 1]
    with load() as plain, load(kv_policy=policy) as engine:
        assert sampled(engine, short) == sampled(plain, short)
        assert sampled(engine, PROMPT) != (whole := sampled(plain, PROMPT))
        held = {name: cache.shape for name, cache in plain.model.caches.items()}
    with load(kv_policy=replace(policy, sparsity=0)) as engine:
        assert sampled(engine, PROMPT) == whole
        assert {name: cache.shape for name, cache in engine.model.caches.items()} == held


def test_sessions_of_other_heads_are_refused(load, policy, tmp_path):
    """A session requires the same streaming heads, even if the policies are equal otherwise."""
    path = tmp_path / "talk.session"
    with load(kv_policy=policy, context=150) as engine:
        more = replace(GREEDY, max_tokens=60)
        assert len(list(engine.stream(PROMPT, more, context_shift=True))) == 60
        engine.save(path)
    with (
        load(kv_policy=replace(policy, sparsity=75)) as other,
        pytest.raises(SessionError, match="kept by the kv_policy duoattention:sinks=4,"),
    ):
        other.restore(path)


def test_continuing_from_freed_cells_is_refused(load, policy):
    """A step that needs freed cells is refused in a line, and holds nothing."""
    with load(kv_policy=policy) as engine:
        model, cells = engine.model, engine.model.cells
        model.evaluate(PROMPT, 0)
        model.evaluate([5], len(PROMPT))
        assert [cells.reach(0, end) for end in (121, 58, 57, 3)] == [121, 58, SINKS, 3]
        with pytest.raises(ValueError, match="cannot be dropped without those after them"):
            cells.remove(0, begin=50, end=60)
        cells.remove(0, begin=40)
        with pytest.raises(StreamedError, match="position 40 would attend to cells that streaming"):
            model.step([5], [40], [(0,)], [0])
        assert (cells.lengths[0], cells.free) == (40, 160)


def test_retrieval_heads_are_identified(load, policy, tmp_path):
    """A head's number is the share of attention that it gives to cells a streaming head would not
    see, by the reference's attention."""
    with load(kv_format="F32") as plain:
        found = alphas(plain.model.file.path, [PROMPT], SINKS, RECENT, observers=3, threads=2)
    assert found.shape == (4, 3)
    tensors, given = SMALL.tensors(), {}

    def attend(block, q, k, v):
        given[block] = q, k
        return policies.duo_attention(q, k, v.reshape(k.shape), np.zeros(3, bool), 0, 1, 1)

    transformer(np.array(PROMPT), *tensors, SMALL.shape(), attend=attend)
    for block, (q, k) in given.items():
        for head in range(3):
            scores = q[-3:, 2 * head : 2 * head + 2].astype(float) @ k[:, head].T / 4
            scores = scores.transpose(1, 0, 2)
            scores[:, *np.triu_indices(3, 1 + len(PROMPT) - 3, len(PROMPT))] = -np.inf
            powers = np.exp(scores - scores.max(axis=2, keepdims=True))
            far = powers[..., SINKS : len(PROMPT) - 3 - RECENT + 1].sum(axis=2)
            share = (far / powers.sum(axis=2)).mean()
            assert abs(found[block, head] - share) < 1e-3


@pytest.mark.parametrize("name", duo.NAMES)
def test_logits_equal_transformers_and_kvpress(tmp_path, name):
    """Logits equal transformers' with the authors' mask, and kvpress's, which masks after a prompt
    that only one block has read."""
    told = json.loads(duo.FILE.read_text())[name]
    heads = tmp_path / "heads.tsv"
    for asked in duo.ASKED:
        checkpoint = asked.of(name)
        write(heads, duo.numbers(checkpoint))
        path = export(checkpoint, tmp_path / "model.gguf")
        policy = asked.policy(str(heads))
        with Engine.load(path, threads=1, kv_format="F32", kv_policy=policy) as engine:
            assert engine.model.method.streaming.tolist() == told[asked.kind]["streaming"]
            rows = engine.logits(asked.tokens(name))[asked.first :]
        demand_near(rows, np.array(told[asked.kind]["logits"], np.float32), EXACT)


def test_alibi_distances_are_those_in_the_text(tmp_path):
    """With distance biases (ALiBi), a cell's distance in a streaming cache is its distance in the
    text, whatever its row."""
    path, heads = SUBJECTS["MPT"].write(tmp_path / "model.gguf"), tmp_path / "heads.tsv"
    load = partial(Engine.load, path, threads=2, context=96)
    with load() as plain:
        config, short = plain.model.config, sampled(plain, PROMPT[:5])
    write(heads, np.arange(config.blocks * config.kv_heads).reshape(config.blocks, -1))
    policy = DuoAttention(SINKS, RECENT, STRIDE, heads=str(heads))
    with load(kv_policy=policy) as engine:
        assert sampled(engine, PROMPT[:5]) == short
        whole = sampled(engine, PROMPT[:80])
    with load(kv_policy=policy, batch=1, sequences=1) as engine:
        assert sampled(engine, PROMPT[:80]) == whole


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "whole context": ({"recent": 192}, "see 200 cells, which is all of a context of 200"),
    "no heads": ({"heads": ""}, "want heads=FILE, the authors' .* or what `python -m bench.retri"),
    "no file": ({"heads": "nowhere.tsv"}, "nowhere.tsv: not a table of numbers by block and head"),
    "no window": ({"recent": 0}, "recent is 0, stride 5 and sparsity 50: want recent"),
    "per cent": ({"sparsity": 101}, "recent is 9, stride 5 and sparsity 101"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_invalid_policies_are_refused(load, policy, name):
    """Each invalid policy has a one-line error."""
    changed, line = OTHERS[name]
    with pytest.raises(EngineError, match=line):
        load(kv_policy=replace(policy, **changed))


def test_cache_formats_with_partial_blocks_are_refused(tmp_path, policy):
    """A row of some heads has the cache's format only if each head is whole blocks of it."""
    path = Small(kv_heads=2).write(tmp_path / "model.gguf")
    with pytest.raises(
        ModelError, match=r"heads of blk\.0 have 16 elements, no whole blocks of 32"
    ):
        Engine.load(path, context=64, kv_format="Q8_0", kv_policy=policy)


def test_bad_head_files_are_refused(load, policy, tmp_path):
    """Files for another model's heads, or without numbers, are refused in a line."""
    path = tmp_path / "heads.tsv"
    for given, line in (
        ("1\t0\n0\t1\n", "numbers of 2 x 2 blocks and KV heads, the model has 4 x 3"),
        ("1\t0\n0\n", "not a table of numbers by block and head"),
        ("1\tnan\n", "not all of its numbers are finite"),
    ):
        path.write_text(given)
        with pytest.raises(ModelError, match=line):
            load(kv_policy=replace(policy, heads=str(path)))


def test_policy_round_trips_through_text(policy):
    """A policy is restored from its text, with its file."""
    assert parse_policy(format_policy(policy)) == policy
    assert parse_policy("duoattention:heads=x.tsv,sparsity=25").sparsity == 25
    with pytest.raises(
        ModelError, match=r"want NAME=NUMBER, of sinks, recent, stride, .*, heads=FILE"
    ):
        parse_policy("duoattention:window=3")
