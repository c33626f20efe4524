"""A two-bit KV cache: packed pages equal the reference's."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from conformance.support.models.small_models import Small
from conformance.support.sampled import GREEDY, sampled
from engine import Engine
from engine.cache.two_bits import ROLLBACK, PackedError
from reference.formats import FORMATS
from reference.formats.kivi import GROUP, page_of_keys, page_of_values

RESIDUAL = 20
SMALL = Small(kv_heads=2, head_dim=32, seed=9)
PROMPT = np.random.default_rng(0).integers(3, 60, 150).tolist()
text = partial(sampled, prompt=PROMPT)
PACKED = (len(PROMPT) - RESIDUAL) // GROUP


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return SMALL.write(tmp_path_factory.mktemp("kivi") / "small.gguf")


@pytest.fixture(scope="module")
def load(model):
    given = {"threads": 2, "context": 320, "sequences": 3, "kv_format": "KIVI2"}
    return partial(Engine.load, model, **{**given, "kv_residual": RESIDUAL})


def test_packed_pages_equal_the_references(load):
    """Pages of the first block equal the reference's for the keys and values of a float16 cache,
    bit for bit; packed rows are freed, as the timings report."""
    with load(kv_format="F16") as plain, load() as engine:
        for each in (plain, engine):
            each.generate(PROMPT, replace(GREEDY, max_tokens=2))
        cells = plain.model.cells.list_of(0)
        own, method = engine.model.cells.list_of(0), engine.model.method
        pages, rows = method.page_of[own[GROUP - 1 :: GROUP]], method.held(0)
        assert (pages >= 0).sum() == method.packed == PACKED
        assert rows == len(own) - GROUP * PACKED + ROLLBACK
        width = 2 * SMALL.head_dim * SMALL.kv_heads
        assert engine.timings.cache == SMALL.blocks * (2 * width * rows + 11 * width * PACKED)
        for part, page_of in (("k", page_of_keys), ("v", page_of_values)):
            exact = FORMATS["F16"].dequantise(plain.model.caches[f"blk.0.{part}_cache"][cells])
            of_block = engine.model.memory[f"blk.0.{part}_pages"]
            for number in range(PACKED):
                group = exact[GROUP * number :][:GROUP].reshape(GROUP, 2, -1)
                assert (of_block[pages[number]] == page_of(group)).all()


def test_the_residual_has_the_bits_of_float16(load):
    """A text no longer than the float16 part has the bits of a float16 cache."""
    short = PROMPT[: RESIDUAL + GROUP - 9]
    with load(kv_format="F16") as plain, load(kv_residual=160) as engine, load() as packed:
        whole = text(plain)
        assert text(engine) == whole
        assert text(packed) != whole
        assert text(packed, prompt=short) == text(plain, prompt=short)


def test_context_shift_packs_pages_anew(load):
    """The rest of a text is recomputed, and packed at its new positions; a reset leaves nothing."""
    with load(context=170) as engine:
        pieces = list(engine.stream(PROMPT, replace(GREEDY, max_tokens=60), context_shift=True))
        assert len(pieces) == 60
        held, cells = list(engine.text.held), engine.model.cells
        pages = cells.method.page_of[cells.list_of(0)[GROUP - 1 :: GROUP]]
        assert (pages >= 0).sum() == (len(held) - RESIDUAL) // GROUP
        engine.reset()
        assert cells.method.held(0) == 0


def test_a_failed_step_packs_nothing(load, monkeypatch):
    """The step after a failed one packs; a text cannot continue inside its packed part."""
    with load() as engine:
        alone = text(engine)
        engine.reset()
        model, step = engine.model, PROMPT[:52]  # the 52nd token is the first to see a page
        model.evaluate(step[:51], 0)
        monkeypatch.setattr(model.executable, "run", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model.step(step[51:], [51], [(0,)], [0])
        monkeypatch.undo()
        assert (model.method.held(0), model.method.packed) == (51, 0)
        engine.text.set_held(step[:51])
        assert text(engine) == alone
        assert model.cells.reach(0, 60) == 0
        model.cells.remove(0, begin=60)
        with pytest.raises(PackedError, match="position 60 would attend to rows that were packed"):
            model.step([5], [60], [(0,)], [0])
        assert model.cells.lengths[0] == 60
