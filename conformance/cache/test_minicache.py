"""Blocks that share a cache: merged pages equal the reference's."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from conformance.support.models.small_models import Small
from conformance.support.sampled import sampled
from engine import Engine, MiniCache, SamplingParams
from engine.cache.merged import MergedError
from engine.errors import ModelError
from reference.cache.minicache import merge_blocks, restore_vectors, slerp, slerp_weights
from reference.formats import FORMATS
from reference.formats.minicache import GROUP, page_bytes, rows_of_pages

RECENT = 20
POLICY = MiniCache(recent=RECENT)
SMALL = Small(kv_heads=2, head_dim=32, seed=9, blocks=3)  # of which the last two are a pair
PROMPT = np.random.default_rng(0).integers(3, 60, 2 * GROUP + 90).tolist()
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
text = partial(sampled, prompt=PROMPT, params=GREEDY)
WIDTH = 2 * SMALL.kv_heads * SMALL.head_dim  # bytes of a cell's keys in a block


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return SMALL.write(tmp_path_factory.mktemp("minicache") / "small.gguf")


@pytest.fixture(scope="module")
def load(model):
    given = {"threads": 2, "context": 700, "sequences": 3, "kv_policy": POLICY}
    return lambda **more: Engine.load(model, **{**given, **more})


def test_merged_pages_equal_the_references(load):
    """Pages of the pair equal the reference's for the keys and values of a plain cache; their rows
    are freed, as the timings report. Decoded, merged vectors have their magnitudes and slerp's
    direction."""
    with load(kv_policy=None) as plain, load() as engine:
        for each in (plain, engine):
            each.generate(PROMPT, replace(GREEDY, max_tokens=2))
        cells, own, method = (
            plain.model.cells.list_of(0),
            engine.model.cells.list_of(0),
            engine.model.method,
        )
        pages = method.page_of[own[GROUP - 1 :: GROUP]]
        assert (pages >= 0).sum() == method.packed == 2
        size = page_bytes(SMALL.head_dim, 13) * SMALL.kv_heads
        rows = 3 * len(own) - 2 * (2 * GROUP)
        assert engine.timings.cache == 2 * (WIDTH * rows + 2 * size)
        for part in "kv":
            given = {
                name: plain.model.caches[f"blk.{block}.{part}_cache"]
                for name, block in (("x", 1), ("y", 2))
            }
            given |= {"due": np.array([[0, 2]]), "lists": cells[None], "format": "F16"}
            zeros = np.zeros((1, SMALL.kv_heads, 5, 2 * GROUP), np.float32)
            weights = slerp_weights(**given, towards=0.6, before=zeros).astype(np.float32)
            before = np.zeros((2, SMALL.kv_heads, size // SMALL.kv_heads), np.uint8)
            lists = np.arange(2)[None]
            want = merge_blocks(**given, weights=weights, page_lists=lists, before=before)
            got = engine.model.memory[f"blk.1.{part}_pages"][pages]
            for upper, name in enumerate("xy"):
                exact = FORMATS["F16"].dequantise(given[name])[cells[: 2 * GROUP]]
                exact = exact.reshape(2, GROUP, SMALL.kv_heads, -1).swapaxes(1, 2)
                ours, theirs = (
                    restore_vectors(*rows_of_pages(p, SMALL.head_dim, upper)) for p in (got, want)
                )
                apart = np.linalg.norm(ours - theirs, axis=-1)
                assert (apart <= 2e-3 * np.linalg.norm(theirs, axis=-1)).all()
                lengths = [np.linalg.norm(x, axis=-1) for x in (ours, exact)]
                np.testing.assert_allclose(*lengths, rtol=2e-3)
                assert ((ours == exact).all(axis=-1).sum(axis=-1) >= 13).all()
            units = [
                FORMATS["F16"].dequantise(given[n])[cells[0], :32].astype(np.float64) for n in "xy"
            ]
            x, y = (unit / np.linalg.norm(unit) for unit in units)
            middle = slerp(x, y, 0.6)
            assert abs(np.linalg.norm(middle) - 1) < 1e-9
            assert abs(np.arccos(x @ middle) - 0.6 * np.arccos(x @ y)) < 1e-6


def test_full_retention_changes_no_bit(load):
    """If every token is retained, all bits are those without the policy; with fewer they differ,
    unless nothing in the text is old enough."""
    with load(kv_policy=None) as plain:
        whole, short = text(plain), text(plain, prompt=PROMPT[: GROUP + 9])
    with load(kv_policy=MiniCache(retained=100, recent=RECENT)) as engine:
        assert text(engine) == whole
        assert engine.model.method.packed == 2
    with load() as engine:
        assert text(engine) != whole
        assert text(engine, prompt=PROMPT[: GROUP + 9]) == short


def test_context_shift_merges_pages_anew(load):
    """The rest of a text is recomputed, and merged at its new positions; a reset leaves nothing."""
    with load(context=640) as engine:
        pieces = list(engine.stream(PROMPT, replace(GREEDY, max_tokens=60), context_shift=True))
        assert (len(pieces), engine.model.method.packed) == (60, 1)
        engine.reset()
        assert engine.model.method.held(2) == 0


def test_a_failed_step_merges_nothing(load, monkeypatch):
    """The step after a failed one merges; a text cannot continue inside its merged part."""
    with load() as engine:
        alone = text(engine)
        engine.reset()
        model, method = engine.model, engine.model.method
        method.begin(0, len(PROMPT))
        model.evaluate(PROMPT[:-1], 0)
        model.step(PROMPT[-1:], [len(PROMPT) - 1], [(0,)], [0])
        monkeypatch.setattr(model.executable, "run", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model.step([5], [len(PROMPT)], [(0,)], [0])
        monkeypatch.undo()
        assert (method.packed, method.held(2)) == (0, len(PROMPT))
        engine.text.set_held(PROMPT)
        assert text(engine) == alone
        assert (method.packed, model.cells.reach(0, 90)) == (2, 0)
        model.cells.remove(0, begin=90)
        with pytest.raises(MergedError, match="position 90 would attend to merged tokens"):
            model.step([5], [90], [(0,)], [0])


@pytest.mark.parametrize("numbers", [{"retained": 101}, {"towards": -1}, {"recent": 0}])
def test_invalid_numbers_are_refused(numbers):
    with pytest.raises(ModelError, match=f"MiniCache: {next(iter(numbers))} is"):
        MiniCache(**numbers)
