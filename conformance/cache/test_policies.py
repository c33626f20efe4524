"""Eviction policies keep the cells that the references keep, and nothing else affects results."""

import json
import mmap
import sys
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest

from conformance.llama.peers import presses
from conformance.llama.peers.checkpoint import CHECKPOINTS
from conformance.llama.peers.compare import EXACT, demand_near
from conformance.llama.peers.export import export
from conformance.support.models.small_models import Small
from conformance.support.sampled import GREEDY, sampled
from engine import (
    H2O,
    Engine,
    KeyDiff,
    Knorm,
    PromptError,
    PyramidKV,
    Quest,
    SnapKV,
    StreamingLLM,
)
from engine.cache.cells import Cells, ContextFullError
from engine.cache.eviction import Eviction
from engine.cache.release import release
from engine.errors import ModelError
from engine.policies.policy import Policy
from engine.policies.table import POLICIES, format_policy, parse_policy
from reference.cache import policies
from reference.op import Array

SMALL = Small(kv_heads=2, seed=3, blocks=3)
PROMPT = np.random.default_rng(0).integers(3, 60, 50).tolist()
KEPT = 20
EACH: dict[str, Policy] = {
    "streaming_llm": StreamingLLM(KEPT),
    "knorm": Knorm(KEPT),
    "keydiff": KeyDiff(KEPT),
    "snapkv": SnapKV(KEPT, window=6),
    "h2o": H2O(KEPT, recent=7),
    "pyramidkv": PyramidKV(KEPT, window=6),
}
OF_A_PYRAMID = H2O(KEPT, recent=7, beta=3)
ASKED = json.loads(presses.FILE.read_text())


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return SMALL.write(tmp_path_factory.mktemp("policies") / "small.gguf")


@pytest.fixture(scope="module")
def load(model):
    return partial(Engine.load, model, threads=2, context=96, sequences=3)


def reference_slots(policy: Policy, keys: Array, received: Array | None, kept: int) -> Array:
    """The slots that the reference keeps, for a text with these rows of keys, F16."""
    given = keys, np.arange(len(keys)), SMALL.kv_heads, "F16", kept
    match policy:
        case StreamingLLM(sinks=sinks):
            return policies.streaming_llm(SMALL.kv_heads, len(keys), kept, sinks)
        case Knorm():
            return policies.by_knorm(*given)
        case KeyDiff():
            return policies.by_keydiff(*given)
    assert received is not None
    match policy:
        case SnapKV(window=window, kernel=kernel):
            return policies.snapkv(received, kept, window, kernel)
        case H2O(recent=recent):
            return policies.h2o(received, kept, recent)
    raise AssertionError(policy)


@pytest.mark.parametrize("policy", [*EACH.values(), OF_A_PYRAMID], ids=format_policy)
def test_kept_slots_equal_the_references(load, policy):
    """Each head has the keys and values of the slots that the reference keeps, bit for bit; other
    cells are free, as the timings report."""
    with load() as plain, load(kv_policy=policy) as engine:
        for each in (plain, engine):
            each.generate(PROMPT, replace(GREEDY, max_tokens=1))
        model, memory = engine.model, engine.model.memory
        cells, held = plain.model.cells.list_of(0), model.cells.list_of(0)
        counts = [KEPT] * SMALL.blocks
        if policy.beta:
            counts = policies.pyramid(KEPT, policy.last, policy.beta, len(counts), len(PROMPT))
        assert (len(cells), len(held)) == (len(PROMPT), max(counts))
        assert model.cells.free == model.cells.capacity - max(counts)
        assert engine.timings.cache * len(cells) * len(counts) == plain.timings.cache * sum(counts)
        for (block, slots), count in zip(model.method.kept.items(), counts, strict=True):
            received = memory.get(f"{block}.received")
            own = None if received is None else received[0, :, : len(PROMPT)]
            keys = plain.model.caches[f"{block}.k_cache"][cells]
            assert slots.tolist() == reference_slots(policy, keys, own, count).tolist()
            for part in ("k_cache", "v_cache"):
                whole = plain.model.caches[f"{block}.{part}"][cells].reshape(len(cells), 2, -1)
                ours = model.caches[f"{block}.{part}"][held[-count:]].reshape(count, 2, -1)
                for head in range(2):
                    assert (ours[:, head] == whole[slots[head], head]).all()


def test_pyramid_capacities_have_the_stated_mean():
    """Blocks keep `capacity` cells in the mean, decreasing from the first, never below what is
    always kept; the last has 1 / beta of the mean, if the first can hold as many."""
    for capacity, always, beta, blocks in product((20, 33, 1024), (0, 16), (1, 7, 20), (1, 2, 22)):
        for held in (capacity + 1, 3 * capacity):
            kept = policies.pyramid(capacity, always, beta, blocks, held)
            assert sum(kept) == capacity * blocks
            assert kept == sorted(kept, reverse=True)
            assert always <= kept[-1] <= kept[0] <= held
            if blocks > 1 and held > 2 * capacity:
                assert kept[-1] == always + round((capacity - always) / beta)


@pytest.mark.parametrize("name", ["snapkv", "pyramidkv"])
def test_evicted_cells_never_matter(load, name):
    """Data in evicted rows changes no bit of later results, also for a longer prompt."""
    more = np.random.default_rng(1).integers(3, 60, 12).tolist()
    told = []
    for corrupted in (False, True):
        with load(kv_policy=EACH[name]) as engine:
            found = [sampled(engine, PROMPT, replace(GREEDY, max_tokens=1))]
            for rest in ([], more):
                cells = engine.model.cells
                for block, begin in enumerate(engine.model.method.begins[0]):
                    for part in ("k_cache", "v_cache") if corrupted else ():
                        cache = engine.model.caches[f"blk.{block}.{part}"]
                        cache[np.setdiff1d(np.arange(len(cache)), cells.list_of(0)[begin:])] = 0xFF
                longer = engine.text.held + engine.text.drawn + rest
                found.append(sampled(engine, longer))
            told.append(found)
    assert told[0] == told[1]


def test_memory_pages_of_freed_rows_are_released():
    """Memory pages with only freed rows become zeros, and no other byte changes."""
    rows = np.full((96 * mmap.PAGESIZE // 1000, 1000), 7, np.uint8)
    gone = np.setdiff1d(np.arange(len(rows)), [150, *range(200, 230)])
    release(rows, gone[::-1])
    held = np.delete(rows, gone, axis=0)
    assert (held == 7).all()
    if sys.platform == "linux":  # a page at either end of three runs is another's, too
        assert np.count_nonzero(rows == 0) > rows[gone].size - 6 * mmap.PAGESIZE


@pytest.mark.parametrize("checkpoint", presses.NAMES)
def test_kept_cells_equal_kvpress(tmp_path, checkpoint):
    """The cells are those of NVIDIA's kvpress, except ties, and the logits after them are those of
    transformers with these cells."""
    tokens = CHECKPOINTS[checkpoint].tokens(presses.PROMPT + presses.FOLLOWING)
    for press in presses.PRESSES:
        path = export(press.of(checkpoint), tmp_path / "model.gguf")
        told = ASKED[checkpoint][press.policy]
        policy = parse_policy(press.policy)
        with Engine.load(path, threads=1, kv_format="F32", kv_policy=policy) as engine:
            engine.text.prefill(tokens[: presses.PROMPT], engine.timings.prompt)
            for slots, theirs in zip(
                engine.model.method.kept.values(), told["layers"], strict=True
            ):
                for own, kept, tied in zip(slots.tolist(), *theirs.values(), strict=True):
                    assert set(kept) <= set(own) <= {*kept, *tied}, press
            rows = np.concatenate(
                [
                    engine.model.step([tokens[at]], [at], [(0,)], [0]).copy()
                    for at in range(presses.PROMPT, len(tokens))
                ]
            )
        if not any(any(tied) for layer in told["layers"] for tied in layer["tied"]):
            demand_near(rows, np.array(told["logits"], np.float32), EXACT)


@pytest.mark.parametrize("name", EACH)
def test_texts_within_the_capacity_change_no_bit(load, name):
    """If all cells are kept no bit changes."""
    short = PROMPT[:KEPT]
    with load() as plain, load(kv_policy=EACH[name]) as engine:
        assert sampled(engine, short) == sampled(plain, short)
        assert engine.model.method.evicted == [0, 0, 0]


class CustomPolicy(Knorm):
    """A user-defined policy."""


def test_custom_policies_cannot_be_saved(load, tmp_path):
    """A name does not identify what it keeps: one line says so, and nothing is written."""
    with load(kv_policy=CustomPolicy(KEPT)) as engine:
        engine.generate(PROMPT, GREEDY)
        with pytest.raises(ModelError, match=r"kv_policy CustomPolicy is none of streaming_llm"):
            engine.save(tmp_path / "talk.session")
    assert not list(tmp_path.iterdir())


def test_scores_ignore_eviction(load):
    """Scores are those of the model without a policy, whatever was evicted before."""
    with load() as plain, load(kv_policy=EACH["snapkv"]) as engine:
        engine.generate(PROMPT, GREEDY)
        assert engine.score(PROMPT, PROMPT[:5]) == plain.score(PROMPT, PROMPT[:5])


def test_shared_cells_are_copied_before_eviction():
    """Cells shared with another sequence stay, and kept ones are copied to free cells, if there are
    any; an evicted text cannot be continued from inside."""
    eviction = Eviction(Knorm(5), 3, blocks=1)
    cells = Cells(20, 3, method=eviction)
    cells.place(range(8), [(0,)] * 8)
    cells.copy(0, 1)
    before = cells.list_of(0).tolist()
    assert (cells.cells_to_compact(0, 5), cells.cells_to_compact(1, 5)) == (5, 5)
    into = cells.compaction_targets(1, 5)
    assert not set(before) & set(into.tolist())
    eviction.compact(1, into)
    assert (cells.list_of(0).tolist(), cells.list_of(1).tolist(), cells.free) == (
        before,
        into.tolist(),
        7,
    )
    assert (cells.next_position(1), cells.positions_of(1).tolist()) == (8, [3, 4, 5, 6, 7])
    assert (cells.reach(1, 7), cells.reach(1, 8), cells.reach(0, 7)) == (0, 8, 7)
    with pytest.raises(ValueError, match="cannot be dropped alone"):
        cells.remove(1, begin=6)
    cells.copy(0, 2)
    with pytest.raises(ContextFullError, match="a shared text needs 8 cells, 7 of 20"):
        cells.compaction_targets(2, 8)
    cells.remove(0)
    cells.remove(2)
    eviction.compact(1, cells.compaction_targets(1, 2))
    assert (cells.list_of(1).tolist(), cells.free, eviction.evicted) == (
        into.tolist()[-2:],
        18,
        [0, 8, 0],
    )
    cells.clear()
    assert (cells.free, eviction.evicted) == (20, [0, 0, 0])


def test_policies_round_trip_through_text():
    """Each policy is restored from its text."""
    for name, kind in POLICIES.items():
        assert parse_policy(name) == kind()
    for policy in (*EACH.values(), OF_A_PYRAMID, Quest(64, page=8, dense=1, apart=1)):
        assert parse_policy(format_policy(policy)) == policy


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("snap", " is 'snap': want streaming_llm, knorm, keydiff, snapkv, h2o, pyramidkv, quest"),
        ("snapkv:capacity", " snapkv has 'capacity': want NAME=NUMBER, of capacity"),
        ("knorm:window=3", " knorm has 'window=3': want NAME=NUMBER, of capacity"),
        ("knorm:capacity=0", "Knorm: capacity is 0: want at least 1"),
        ("snapkv:capacity=31", "SnapKV: capacity is 31, but 32 cells are always kept"),
        ("pyramidkv:beta=0", "PyramidKV: beta is 0: want a number from 1 up"),
        ("quest:budget=15", "Quest: budget is 15 and page 16: want page >= 1 and budget >= page"),
        ("quest:page=0", "Quest: budget is 1024 and page 0: want page >= 1 and budget >= page"),
        ("quest:apart=2", "Quest: apart is 2: want 0 or 1"),
        ("snapkv:kernel=4", "SnapKV: window is 32 and kernel 4: want window >= 1"),
    ],
)
def test_invalid_policies_are_refused(inside, model, given, line):
    """One line names the error; in the shell it is wrong usage."""
    code, _, told = inside("run", str(model), "--kv-policy", given, "-p", "a")
    assert (code, line in " ".join(told.split())) == (2, True), told
    with pytest.raises(ModelError):
        parse_policy(given)


def test_context_shift_is_refused(load):
    """It would have to recompute evicted tokens."""
    with load(kv_policy=EACH["knorm"]) as engine, pytest.raises(PromptError, match="context_shift"):
        engine.stream(PROMPT, GREEDY, context_shift=True)
