"""Quest: tokens of an answer read the pages that the reference chooses, and no others matter."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from conformance.support.drawn import Drawn, drawn
from conformance.support.models.small_families import SUBJECTS
from conformance.support.models.small_models import Small
from conformance.support.models.small_recurrent import RECURRENT
from engine import Engine, LookaheadTrie, PromptLookup, Quest, SamplingParams
from engine.cache.session import SessionError
from engine.errors import EngineError, ModelError
from engine.graph import Value
from engine.model import Model
from kernels.cpu.runtime.team import Program
from reference.cache import policies
from reference.formats import FORMATS
from reference.op import Array

SMALL = Small(blocks=3, kv_heads=2, seed=9)
PROMPT = np.random.default_rng(0).integers(3, 60, 50).tolist()
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
QUEST = Quest(budget=12, page=4, dense=1)
DRAFTING = PromptLookup(prompt_lookup_min=1), LookaheadTrie()


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    path = SMALL.write(tmp_path_factory.mktemp("quest") / "small.gguf")
    return partial(Engine.load, path, threads=2, context=96, sequences=3)


def text(engine: Engine, prompt: list[int] = PROMPT, params: SamplingParams = GREEDY) -> Drawn:
    return drawn(engine, prompt, params)


def chosen(model: Model) -> Mapping[str, tuple[Array, list[list[int]]]]:
    """Of the last step's only token, which is run once more, entry by entry: by block its queries
    and the rows of cells that each chooser reads."""
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
def test_what_is_read_is_the_references(load, policy):
    """Each head reads the cells of the pages that the reference chooses, and what stands in others
    changes no bit of the logits."""
    with load(kv_policy=policy) as engine:
        text(engine)
        model = engine.model
        step = partial(model.step, [5], [len(engine.text.held)], [(0,)], [0])
        before, cells = step().copy(), model.cells.of(0).copy()
        read = chosen(model)
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


def test_all_pages_are_as_without(load):
    """Where a text has no more pages than are read no bit changes; the first blocks read all."""
    with load() as plain, load(kv_policy=replace(QUEST, budget=60)) as engine:
        assert text(engine) == text(plain)
    with load() as plain, load(kv_policy=replace(QUEST, dense=3)) as engine:
        assert text(engine) == text(plain)
    with load() as plain, load(kv_policy=QUEST) as engine:
        first, rest = text(engine)[0], text(plain)
        assert first == rest[0]  # a prompt is read whole
        assert text(engine)[1:] != rest[1:]
        assert engine.score(PROMPT, PROMPT[:5]) == plain.score(PROMPT, PROMPT[:5])


def test_the_same_every_way(load):
    """Threads, how a prompt is cut into steps, what was read before, forks and company change no
    bit; of an answer, which chose its pages, nothing is taken for a part of a prompt."""
    with load(kv_policy=QUEST) as engine:
        alone = text(engine)
        tokens = [token for token, _ in alone]
        assert text(engine) == alone
        longer = text(engine, PROMPT + tokens[:6] + [7])
        engine.reset()
        assert text(engine, PROMPT + tokens[:6] + [7]) == longer
        forks = list(engine.stream(PROMPT, replace(GREEDY, n=2)))
        assert [[p.token for p in forks if p.index == i] for i in (0, 1)] == [tokens, tokens]
    with load(kv_policy=QUEST, threads=1, batch=7) as engine:
        assert text(engine) == alone
    prompts = [PROMPT, PROMPT[:35], PROMPT[:15] + PROMPT[20:], PROMPT, PROMPT[:10]]
    with load(kv_policy=QUEST, context=70, batch=16) as engine:
        each = [engine.generate(prompt, GREEDY).outputs[0].token_ids for prompt in prompts]
        engine.reset()
        many = engine.generate(prompts, GREEDY)
        assert [found.outputs[0].token_ids for found in many] == each
        assert each[0] == tuple(tokens)


@pytest.mark.parametrize("drafting", DRAFTING, ids=["chains", "trees"])
def test_drafts_change_nothing(load, drafting):
    """A page is whole before it is scored, so no draft behind a token has a part in its choice."""
    repeating = PROMPT[:12] * 4
    with load(kv_policy=QUEST) as plain:
        wanted = plain.generate(repeating, replace(GREEDY, max_tokens=20)).outputs[0].token_ids
    with load(kv_policy=QUEST, speculation=drafting) as engine:
        got = engine.generate(repeating, replace(GREEDY, max_tokens=20)).outputs[0].token_ids
        assert got == wanted
        assert engine.timings.speculation.drafted


def test_sessions_and_shifts_go_on(load, tmp_path):
    """A session goes on as if it had never stopped, and is refused by another policy; behind a
    context that has shifted tokens go on choosing."""
    path = tmp_path / "talk.session"
    with load(kv_policy=QUEST) as engine:
        whole = engine.generate(PROMPT, GREEDY).outputs[0].token_ids
        engine.reset()
        begun = engine.generate(PROMPT, replace(GREEDY, max_tokens=3)).outputs[0].token_ids
        engine.save(path)
    with load(kv_policy=QUEST, context=90) as other:
        rest = other.stream(other.restore(path), replace(GREEDY, max_tokens=5), resume=True)
        assert begun + tuple(piece.token for piece in rest) == whole
        assert other.timings.prompt.tokens == 1
        more = replace(GREEDY, max_tokens=60)
        shifted = [p.token for p in other.stream(PROMPT, more, context_shift=True)]
        assert len(shifted) == 60
        assert other.model.method.by_choice.any()
        last = other.text.held[:]
        assert other.model.method.dense_until[0] < len(last)
    with load() as other, pytest.raises(SessionError, match="kept by the kv_policy quest:"):
        other.restore(path)


def test_a_fork_and_a_removal_make_pages_anew(load):
    """Extremes are those of the keys that a sequence has now, whatever stood there before."""
    with load(kv_policy=QUEST) as engine:
        cells, pages = engine.model.cells, engine.model.method
        text(engine)
        cells.copy(0, 1, end=30)
        assert pages.stale([0, 1]).tolist() == [[14, 14], [0, 7], [0, 0]]
        cells.remove(0, begin=22)
        assert pages.stale([0]).tolist() == [[5, 5], [0, 0], [0, 0]]
        assert (pages.dense_until[1], pages.by_choice[cells.of(1)].any()) == (50, False)


REFUSING: dict[str, tuple[Small, str]] = {
    "slopes": (SUBJECTS["MPT"], "Quest: .*go by distance"),
    "windows": (SUBJECTS["Gemma 3, no cap, untied, F16"], "sees a window of the text as it is"),
    "sinks": (SUBJECTS["gpt-oss"], "blk.0 (has sinks|sees a window)"),
    "latent": (SUBJECTS["DeepSeek-V2"], "has no keys and values of its own"),
    "recurrent": (RECURRENT["Mamba"], "blocks of this model are recurrent"),
}


@pytest.mark.parametrize("name", REFUSING)
def test_models_that_it_does_not_go_with(tmp_path, name):
    """One line says why, before a kernel is chosen."""
    small, line = REFUSING[name]
    with pytest.raises(ModelError, match=line):
        Engine.load(small.write(tmp_path / "model.gguf"), context=64, kv_policy=QUEST)


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "whole context": ({"kv_policy": Quest(96, page=4)}, "Quest reads 24 pages of 4 cells"),
    "blocks": ({"kv_policy": QUEST, "kv_format": "Q8_0"}, "in Q8_0, .* want kv_format F32 or F16"),
    "budget": ({"ram_budget": "1GiB", "kv_policy": QUEST}, "ram_budget and kv_policy"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_does_not_go_together(load, name):
    options, line = OTHERS[name]
    with pytest.raises(EngineError, match=line):
        load(**options)
