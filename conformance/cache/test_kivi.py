"""A cache in two bits: what is packed is what the reference packs, and what follows is the same
every way."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from conformance.support.drawn import drawn
from conformance.support.models.small_families import SUBJECTS
from conformance.support.models.small_models import Small
from conformance.support.models.small_recurrent import RECURRENT
from engine import Engine, Lookahead, PromptLookup, SamplingParams, SnapKV
from engine.cache.session import SessionError
from engine.cache.two_bits import BACK, PackedError
from engine.errors import EngineError, ModelError
from reference.formats import FORMATS
from reference.formats.kivi import GROUP, page_of_keys, page_of_values

RESIDUAL = 20
SMALL = Small(kv_heads=2, head_dim=32, seed=9)
PROMPT = np.random.default_rng(0).integers(3, 60, 150).tolist()
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
text = partial(drawn, prompt=PROMPT, params=GREEDY)
PACKED = (len(PROMPT) - RESIDUAL) // GROUP


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return SMALL.write(tmp_path_factory.mktemp("kivi") / "small.gguf")


@pytest.fixture(scope="module")
def load(model):
    given = {"threads": 2, "context": 320, "sequences": 3, "kv_format": "KIVI2"}
    return partial(Engine.load, model, **{**given, "kv_residual": RESIDUAL})


def test_what_is_packed_is_the_references(load):
    """Pages of the first block hold what the reference packs of the keys and values of a cache in
    float16, bit for bit; the rows of what is packed are free, and the timings say so."""
    with load(kv_format="F16") as plain, load() as engine:
        for each in (plain, engine):
            each.generate(PROMPT, replace(GREEDY, max_tokens=2))
        cells = plain.model.cells.of(0)
        own, method = engine.model.cells.of(0), engine.model.method
        pages, rows = method.page_of[own[GROUP - 1 :: GROUP]], method.held(0)
        assert (pages >= 0).sum() == method.packed == PACKED
        assert rows == len(own) - GROUP * PACKED + BACK
        width = 2 * SMALL.head_dim * SMALL.kv_heads
        assert engine.timings.cache == SMALL.blocks * (2 * width * rows + 11 * width * PACKED)
        for part, page_of in (("k", page_of_keys), ("v", page_of_values)):
            exact = FORMATS["F16"].dequantise(plain.model.caches[f"blk.0.{part}_cache"][cells])
            of_block = engine.model.memory[f"blk.0.{part}_pages"]
            for number in range(PACKED):
                group = exact[GROUP * number :][:GROUP].reshape(GROUP, 2, -1)
                assert (of_block[pages[number]] == page_of(group)).all()


def test_the_latest_tokens_are_as_without(load):
    """A text that is no longer than what stays in float16 has every bit that it has there."""
    short = PROMPT[: RESIDUAL + GROUP - 9]
    with load(kv_format="F16") as plain, load(kv_residual=160) as engine, load() as packed:
        whole = text(plain)
        assert text(engine) == whole
        assert text(packed) != whole
        assert text(packed, prompt=short) == text(plain, prompt=short)


def test_the_same_every_way(load):
    """Threads, how a prompt is cut into steps, what was read before, forks, scores and company
    change no bit, though cells run out and texts are put back."""
    with load() as engine:
        alone = text(engine)
        assert text(engine) == alone
        text(engine, prompt=PROMPT[:70])
        assert text(engine) == alone
        tokens = list(engine.generate(PROMPT, GREEDY).outputs[0].token_ids)
        pieces = list(engine.stream(PROMPT, replace(GREEDY, n=2)))
        assert [[p.token for p in pieces if p.index == i] for i in (0, 1)] == [tokens, tokens]
        score = engine.score(PROMPT, PROMPT[:5])
        further = PROMPT + tokens + PROMPT[:30]  # a talk goes on, and its last words are others
        talk = text(engine, prompt=further)
        evaluated = engine.timings.prompt.tokens
        text(engine, prompt=[*further[:-3], 7, 7, 7])
        assert engine.timings.prompt.tokens < 40 < evaluated + 40
    with load(threads=1, batch=7) as engine:
        assert text(engine) == alone
        assert text(engine, prompt=further) == talk
        assert engine.score(PROMPT, PROMPT[:5]) == score
    prompts = [PROMPT, PROMPT[:99], PROMPT[:64] + PROMPT[70:], PROMPT, PROMPT[:10]]
    with load(context=200, batch=16) as engine:
        each = [engine.generate(prompt, GREEDY).outputs[0].token_ids for prompt in prompts]
        engine.reset()
        many = engine.generate(prompts, GREEDY)
        assert [found.outputs[0].token_ids for found in many] == each
        assert each[0] == tuple(tokens)
        engine.reset()
        model = engine.model
        assert (model.cells.free, model.method.held(0), model.method.packed) == (200, 0, 0)


@pytest.mark.parametrize(
    "drafting", [PromptLookup(adaptive=False), Lookahead()], ids=["chains", "trees"]
)
def test_drafts_change_nothing(load, drafting):
    """What a draft would have packed stands behind what is packed without it."""
    repeating, asked = PROMPT[:12] * 8, replace(GREEDY, max_tokens=40)
    with load() as plain:
        wanted = plain.generate(repeating, asked).outputs[0].token_ids
    with load(speculation=drafting) as engine:
        assert engine.generate(repeating, asked).outputs[0].token_ids == wanted
        assert engine.timings.speculation.drafted


def test_a_full_context_is_shifted(load):
    """What is left of a text is read anew, and packed by its new places."""
    with load(context=170) as engine:
        pieces = list(engine.stream(PROMPT, replace(GREEDY, max_tokens=60), context_shift=True))
        assert len(pieces) == 60
        held, cells = list(engine.text.held), engine.model.cells
        pages = cells.method.page_of[cells.of(0)[GROUP - 1 :: GROUP]]
        assert (pages >= 0).sum() == (len(held) - RESIDUAL) // GROUP


def test_sessions_go_on(load, tmp_path):
    """Pages and rows are saved and gone on with; another format's or residual's are refused."""
    path = tmp_path / "talk.session"
    with load() as engine:
        whole = engine.generate(PROMPT, replace(GREEDY, max_tokens=40)).outputs[0].token_ids
        engine.reset()
        begun = engine.generate(PROMPT, replace(GREEDY, max_tokens=3)).outputs[0].token_ids
        engine.save(path)
    with load(context=200, batch=9) as other:
        other.generate(PROMPT[:90], GREEDY)
        tokens = other.restore(path)
        rest = other.stream(tokens, replace(GREEDY, max_tokens=37), resume=True)
        assert begun + tuple(piece.token for piece in rest) == whole
        assert other.timings.prompt.tokens == 1
    for given, ours in (({"kv_format": "F16"}, "F16"), ({"kv_residual": 64}, "KIVI2:residual=64")):
        with load(**given) as other, pytest.raises(SessionError) as refused:
            other.restore(path)
        assert str(refused.value).endswith(f"in KIVI2:residual=20, the engine's in {ours}")


def test_a_step_that_fails_packs_nothing(load, monkeypatch):
    """What a step would have packed is packed by the next that comes so far; a text cannot go on
    from inside what is in two bits."""
    with load() as engine:
        alone = text(engine)
        engine.reset()
        model, step = engine.model, PROMPT[:52]  # the 52nd token is the first to see a page
        model.evaluate(step[:51], 0)
        monkeypatch.setattr(model.ready, "run", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model.step(step[51:], [51], [(0,)], [0])
        monkeypatch.undo()
        assert (model.method.held(0), model.method.packed) == (51, 0)
        engine.text.hold(step[:51])
        assert text(engine) == alone
        assert model.cells.reach(0, 60) == 0
        model.cells.remove(0, begin=60)
        with pytest.raises(PackedError, match="position 60 goes on from tokens that are in two"):
            model.step([5], [60], [(0,)], [0])
        assert model.cells.lengths[0] == 60


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"kv_policy": SnapKV(20, window=6)}, "kv_format KIVI2 and kv_policy exclude each other"),
        ({"ram_budget": "1GiB"}, "kv_format KIVI2 and ram_budget exclude each other"),
        ({"kv_residual": 0}, "kv_residual must be at least 1, got 0"),
        ({"kv_format": "KIVI3"}, "kv_format is 'KIVI3': want F32, F16, Q8_0, Q4_0, KIVI2"),
    ],
)
def test_options_that_do_not_go_together(load, given, line):
    """Each is told in one line."""
    with pytest.raises(ModelError) as refused:
        load(**given)
    assert str(refused.value) == line


@pytest.mark.parametrize(
    ("small", "line"),
    [
        (SUBJECTS["Gemma 3, no cap, untied, F16"], "sees a window of the text"),
        (RECURRENT["Mamba"], "are recurrent"),
        (Small(kv_heads=2, head_dim=16), "the 16 elements of a head of blk.0 are no whole number"),
    ],
)
def test_models_that_have_no_such_cells(tmp_path, small, line):
    """Each is told in one line."""
    with pytest.raises(EngineError) as refused:
        Engine.load(small.write(tmp_path / "model.gguf"), threads=1, kv_format="KIVI2")
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)
