"""Quest: generated tokens read the pages that the reference selects, and no others matter."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from conformance.support.models.small_models import Small
from conformance.support.sampled import GREEDY, sampled
from engine import Engine, Quest
from engine.graph import Value
from engine.model import Model
from kernels.cpu.runtime.team import Program
from reference.cache import policies
from reference.formats import FORMATS
from reference.op import Array

SMALL = Small(blocks=3, kv_heads=2, seed=9)
PROMPT = np.random.default_rng(0).integers(3, 60, 50).tolist()
QUEST = Quest(budget=12, page=4, dense=1)


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    path = SMALL.write(tmp_path_factory.mktemp("quest") / "small.gguf")
    return partial(Engine.load, path, threads=2, context=96, sequences=3)


def selected_rows(model: Model) -> Mapping[str, tuple[Array, list[list[int]]]]:
    """For the last step's only token, run again entry by entry: each block's queries and the rows
    of cells that each chooser reads."""
    plan, found = model.plan, {}
    for call, entry in zip(plan.calls, plan.entries, strict=True):
        model.team.run(Program([entry]))
        node = plan.steps[call.step].node
        if node.op != "choose_pages":
            continue
        block = node.label.removesuffix(".page_lists")
        named = {n.label: n.arguments for n in (step.node for step in plan.steps)}
        q, spans = named[f"{block}.page_scores"]["q"], node.arguments["chosen_spans"]
        assert isinstance(q, Value)
        assert isinstance(spans, Value)
        lists = model.memory[node.arguments["out"].name]
        choosers = q.dims[1] if model.options.kv_policy.apart else SMALL.kv_heads
        rows = [lists[r, b:e].tolist() for r, b, e in plan.array(spans)[:choosers].tolist()]
        found[block] = plan.array(q)[0].copy(), rows
    return found


@pytest.mark.parametrize("policy", [QUEST, replace(QUEST, apart=1, dense=2)], ids=["sum", "apart"])
def test_selected_pages_equal_the_references(load, policy):
    """Each head reads the cells of the pages that the reference selects, and data in others changes
    no bit of the logits."""
    with load(kv_policy=policy) as engine:
        sampled(engine, PROMPT)
        model = engine.model
        step = partial(model.step, [5], [len(engine.text.held)], [(0,)], [0])
        before, cells = step().copy(), model.cells.list_of(0).copy()
        read = selected_rows(model)
        assert list(read) == [f"blk.{i}" for i in range(policy.dense, SMALL.blocks)]
        for block, (q, rows) in read.items():
            caches = [model.caches[f"{block}.{part}_cache"] for part in "kv"]
            keys = FORMATS["F16"].dequantise(caches[0][cells]).reshape(len(cells), 2, -1)
            slots = policies.quest(q, keys, policy.page, policy.chosen, len(rows))
            own = [c * 2 // len(rows) for c in range(len(rows))]
            assert rows == [(cells[s] * 2 + g).tolist() for s, g in zip(slots, own, strict=True)]
            unread = np.setdiff1d(np.arange(2 * len(caches[0])), np.concatenate(rows))
            assert len(unread) > len(cells)
            for cache in caches:
                cache.reshape(2 * len(cache), -1)[unread] = 0xFF  # NaN
        model.cells.remove(0, begin=len(engine.text.held))
        assert step().tobytes() == before.tobytes()


def test_reading_all_pages_changes_no_bit(load):
    """If a text has no more pages than are read no bit changes; the first blocks read all."""
    with load() as plain, load(kv_policy=replace(QUEST, budget=60)) as engine:
        assert sampled(engine, PROMPT) == sampled(plain, PROMPT)
    with load() as plain, load(kv_policy=replace(QUEST, dense=3)) as engine:
        assert sampled(engine, PROMPT) == sampled(plain, PROMPT)
    with load() as plain, load(kv_policy=QUEST) as engine:
        first, rest = sampled(engine, PROMPT)[0], sampled(plain, PROMPT)
        assert first == rest[0]  # a prompt is read whole
        assert sampled(engine, PROMPT)[1:] != rest[1:]
        assert engine.score(PROMPT, PROMPT[:5]) == plain.score(PROMPT, PROMPT[:5])


def test_context_shift_selects_pages_anew(load):
    """After a context shift tokens continue to select pages."""
    with load(kv_policy=QUEST, context=90) as engine:
        more = replace(GREEDY, max_tokens=60)
        assert len(list(engine.stream(PROMPT, more, context_shift=True))) == 60
        assert engine.model.method.by_choice.any()
        assert engine.model.method.dense_until[0] < len(engine.text.held)


def test_forks_and_removals_update_page_extremes(load):
    """Extremes are those of a sequence's present keys, whatever was there before."""
    with load(kv_policy=QUEST) as engine:
        cells, pages = engine.model.cells, engine.model.method
        sampled(engine, PROMPT)
        cells.copy(0, 1, end=30)
        assert pages.stale([0, 1]).tolist() == [[14, 14], [0, 7], [0, 0]]
        cells.remove(0, begin=22)
        assert pages.stale([0]).tolist() == [[5, 5], [0, 0], [0, 0]]
        assert (pages.dense_until[1], pages.by_choice[cells.list_of(1)].any()) == (50, False)
