"""Generation: sampled tokens, resuming, and the state it leaves."""

import gc
import threading
import weakref
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from conformance.support.models.formula import log_softmax
from conformance.support.models.small_models import Small
from conformance.support.models.spelling import (
    BOS,
    EOS,
    TEXT,
    Spelling,
    generate,
    letters,
    tokens,
)  # fmt: skip
from engine import Engine, SamplingParams
from engine.config import ModelError
from engine.errors import ClosedError
from engine.tokenizer.vocab import TokenizerError
from reference.op import Array

REPEATABLE: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 0.9, "seed": 7},
    "mirostat": {"temperature": 1.0, "seed": 1, "mirostat": 2},
}


@pytest.mark.parametrize("params", REPEATABLE.values(), ids=REPEATABLE.keys())
def test_same_parameters_same_tokens(engine, spelling, params):
    """Greedy or seeded, texts are reproducible with any cache contents and threads."""
    first = generate(engine, **params)
    assert generate(engine, **params) == first
    engine.reset()
    assert generate(engine, **params) == first
    with Engine.load(spelling, threads=1, batch=3) as other:
        assert generate(other, **params) == first
    assert len(first) == 16


def test_prompt_logprobs_equal_the_logits(engine):
    """Only the first piece has them, each prompt token's given those before it."""
    prompt = engine.encode(TEXT * 4)
    pieces = generate(engine, prompt, prompt_logprobs=0)
    rows = engine.logits(prompt)
    assert pieces[0].prompt_logprobs is not None
    first, *found = pieces[0].prompt_logprobs
    assert first is None
    assert all(piece.prompt_logprobs is None for piece in pieces[1:])
    for logprob, token, row in zip(found, prompt[1:], rows, strict=False):
        expected, error = log_softmax(row)
        assert logprob == pytest.approx(expected[token], abs=error, rel=0)
    assert len(found) == len(prompt) - 1
    assert tokens(pieces) == tokens(generate(engine, prompt))


def test_logits_processors(engine):
    """A processor gets all tokens so far and the raw logits, and its result is sampled from."""
    prompt = engine.encode(TEXT)
    seen: list[tuple[list[int], bytes]] = []

    def least(history: list[int], logits: Array) -> Array:
        seen.append((history, logits.tobytes()))
        return -logits

    pieces = generate(engine, prompt, logits_processors=[least], max_tokens=5)
    everything = prompt + tokens(pieces)
    rows = engine.logits(everything)[len(prompt) - 1 :]
    assert [history for history, _ in seen] == [everything[: len(prompt) + i] for i in range(5)]
    assert [raw for _, raw in seen] == [row.tobytes() for row in rows[:5]]
    assert tokens(pieces) == [int(row.argmin()) for row in rows[:5]]


@pytest.mark.parametrize("keep", [0, 3])
def test_context_shift_recomputes_the_kept_tokens(engine, spelling, keep):
    """Logits after a shift have the bits of an engine that read only the kept tokens."""
    seen: list[bytes] = []

    def note(_: list[int], logits: Array) -> Array:
        seen.append(logits.tobytes())
        logits[EOS] = -np.inf
        return logits

    params = SamplingParams(max_tokens=50, seed=2, logits_processors=[note])
    prompt = [BOS, *letters(TEXT)]
    with Engine.load(spelling, context=24, threads=1) as small:
        pieces = small.stream(prompt, params, context_shift=True, keep=keep)
        held = [list(small.text.held) for _ in pieces]
    assert sum(len(after) < len(before) for before, after in pairwise(held)) >= 2
    for before, after in pairwise(held):
        if len(after) < len(before):
            forgotten = (len(before) - keep) // 2
            assert after[:-1] == before[:keep] + before[keep + forgotten :]
    for ids, logits in zip(held, seen, strict=True):
        assert ids[:keep] == prompt[:keep]
        assert engine.logits(ids)[-1].tobytes() == logits
    assert len(seen) == 50


def test_cancelled_from_another_thread(engine):
    """cancel() ends every completion after its present token; the next generation runs."""
    for n in (1, 3):
        pieces = []
        params = SamplingParams(max_tokens=None, ignore_eos=True, n=n, seed=1)
        for piece in engine.stream(TEXT, params):
            pieces.append(piece)
            if len(pieces) == 3 * n:
                canceller = threading.Thread(target=engine.cancel)
                canceller.start()
                canceller.join()
        assert [p.finish_reason for p in pieces] == [None] * 3 * n + ["cancelled"] * n
    assert len(generate(engine)) == 16


def test_abandoned_generation(engine):
    """A generation that is closed early, or fails, leaves a working engine."""
    expected = generate(engine)
    for n in (1, 3):
        running = engine.stream(TEXT, SamplingParams(n=n, seed=1))
        for _ in range(4):
            next(running)
        running.close()
        assert generate(engine) == expected

    def broken(_: list[int], logits: Array) -> Array:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        generate(engine, logits_processors=[broken])
    assert generate(engine) == expected


@pytest.mark.parametrize(
    ("prompt", "params", "options", "message"),
    [
        ([], {}, {}, "the prompt is empty"),
        ([5] * 65, {}, {}, "the prompt has 65 tokens, the context holds 64"),
        ([5, 286], {}, {}, "token 286 is outside the vocabulary of 286"),
        ([-1], {}, {}, "token -1 is outside"),
        ([5], {"n": 9}, {}, "n is 9, this engine was loaded for at most 8"),
        ([5], {"n": 2}, {"context_shift": True}, "needs a single completion"),
        ([5], {}, {"keep": 64}, "keep must be 0 to 63, got 64"),
        ([5], {"stop_token_ids": [286]}, {}, "stop_token_ids holds 286"),
    ],
)
def test_wrong_requests(engine, prompt, params, options, message):
    """Each has a one-line error, and changes nothing."""
    expected = generate(engine)
    with pytest.raises(ValueError, match=message) as caught:
        list(engine.stream(prompt, SamplingParams(**params), **options))
    assert "\n" not in str(caught.value)
    assert generate(engine) == expected


def test_timings(engine):
    """Every token is counted once; a cached prompt costs only its last token."""
    prompt = engine.encode(TEXT)
    for evaluated in (len(prompt), 1):
        generate(engine, prompt, max_tokens=5)
        spans = engine.timings
        assert (spans.prompt.tokens, spans.eval.tokens, spans.sample.tokens) == (evaluated, 4, 5)
        assert min(spans.prompt.seconds, spans.eval.seconds, spans.sample.seconds) > 0
        assert spans.load.seconds > 0


def test_two_engines(engine, spelling):
    """Two engines, interleaved token by token, do not affect each other."""
    params = SamplingParams(seed=1)
    alone = list(engine.stream(TEXT, params))
    with Engine.load(spelling, threads=3) as other:
        pairs = zip(engine.stream(TEXT, params), other.stream(TEXT, params), strict=True)
        assert list(pairs) == [(piece, piece) for piece in alone]


def test_closed_engine_frees_everything(tmp_path):
    """After a with block there are no threads, no memory and no mapped file, and use is refused."""
    path = Spelling().write(tmp_path / "closed.gguf")
    before = threading.active_count()
    with Engine.load(path, threads=3) as engine:
        generate(engine)
        assert threading.active_count() == before + 2
        model = engine.model
        inputs = {k: v for k, v in model.plan.inputs.items() if k != "lists" and "cell" not in k}
        memory = [model.plan.arena, *model.caches.values(), *inputs.values()]
        alive = [weakref.ref(array) for array in memory]
        del memory, inputs
    gc.collect()
    assert threading.active_count() == before
    assert not any(ref() is not None for ref in alive)
    assert str(path) not in Path("/proc/self/maps").read_text()
    with pytest.raises(ClosedError, match="closed"):
        generate(engine)


def test_failed_load_frees_everything(tmp_path):
    """A file that fails after its weights were packed leaves no thread and no mapped file."""
    before = threading.active_count()

    class NoTokenizer(Small):
        def _vocabulary(self, writer: gguf.GGUFWriter) -> None:
            writer.add_tokenizer_model("unheard-of")

    failing = {NoTokenizer: TokenizerError, Spelling: ModelError}
    for kind, error in failing.items():
        path = kind(vocab=70 if kind is NoTokenizer else 280).write(tmp_path / "failing.gguf")
        with pytest.raises(error):
            Engine.load(path, threads=3)
        gc.collect()
        assert threading.active_count() == before
        assert str(path) not in Path("/proc/self/maps").read_text()
