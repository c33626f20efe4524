"""Properties shared by all cache methods: the same bits for any split and batch, unchanged by
drafts, with sessions, and one-line errors for unsupported models. Each method's own file tests what
it keeps, reads or packs."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.support.models.small_families import SUBJECTS
from conformance.support.models.small_models import Small
from conformance.support.models.small_recurrent import RECURRENT
from conformance.support.sampled import GREEDY, sampled
from engine import (
    H2O,
    DuoAttention,
    Engine,
    KeyDiff,
    Knorm,
    Lookahead,
    LookaheadTrie,
    MInference,
    MiniCache,
    PromptLookup,
    PyramidKV,
    Quest,
    SnapKV,
)
from engine.cache.session import SessionError
from engine.errors import EngineError
from engine.policies.retrieval import write

MOST = [np.random.default_rng(0).integers(3, 60, count).tolist() for count in (50, 120, 150, 602)]
PATTERNS = [["stream_llm", 4, 9, 1.0], ["block_sparse", 1, 0, 1.0]]
FEW = MInference(columns=8, diagonals=6, first=2, recent=3, observers=20, stretch=64)


@dataclass(frozen=True, slots=True)
class Method:
    """A model and options with which an engine omits something of a prompt.

    `evaluates`: the tokens that a continued chat evaluates besides its last words; `crowded`: a
    context too small for all texts; in a continued `talk` nothing may differ from the text read at
    once. Sessions continue with the options `moved`, and others are refused with `line`. Drafts use
    `repeats` repetitions of a prompt's first twelve tokens.
    """

    small: Small
    prompt: list[int]
    options: Callable[[Path], dict[str, Any]]
    context: int
    crowded: int
    evaluates: int
    talk: bool = False
    moved: Callable[[Path], dict[str, Any]] = lambda _: {}
    refused: Sequence[dict[str, Any]] = ()
    line: str = ""
    repeats: int = 4
    drafting: Sequence[Any] = (PromptLookup(adaptive=False), Lookahead())


def of_policy(policy: Any, told: str = "") -> Method:
    return Method(
        Small(kv_heads=2, seed=3, blocks=3), MOST[0], lambda _: {"kv_policy": policy}, 96, 64,
        evaluates=1, talk=True, moved=lambda _: {"context": 60},
        refused=({"kv_policy": None}, {"kv_policy": Knorm(20)}),
        line=rf"kept by the kv_policy {told}, the engine's is (none|knorm:capacity=20)$",
    )  # fmt: skip


def of_heads(folder: Path) -> dict[str, Any]:
    """Half of all blocks' heads stream."""
    path = folder / "heads.tsv"
    write(path, np.random.default_rng(5).permutation(np.arange(12.0)).reshape(4, 3))
    return {"kv_policy": DuoAttention(4, 9, 5, heads=str(path))}


def of_patterns(folder: Path) -> dict[str, Any]:
    """Heads 0 and 2 of both blocks have the other patterns; 1 and 3 vertical-slash."""
    path = folder / "patterns.json"
    path.write_text(json.dumps([{"0": PATTERNS[0], "2": PATTERNS[1]}] * 2))
    return {"prompt_attention": replace(FEW, heads=str(path))}


METHODS = {
    "keydiff": of_policy(KeyDiff(20)),
    "h2o": of_policy(H2O(20, recent=7)),
    "snapkv": of_policy(SnapKV(20, window=6), "snapkv:capacity=20,window=6,kernel=5"),
    "pyramidkv": of_policy(
        PyramidKV(20, window=6), "pyramidkv:capacity=20,beta=20,window=6,kernel=5"
    ),
    "quest": Method(
        Small(blocks=3, kv_heads=2, seed=9), MOST[0],
        lambda _: {"kv_policy": Quest(budget=12, page=4, dense=1)}, 96, 70, evaluates=6,
        moved=lambda _: {"context": 90}, refused=({"kv_policy": None},),
        line="kept by the kv_policy quest:",
        drafting=(PromptLookup(prompt_lookup_min=1), LookaheadTrie()),
    ),
    "duoattention": Method(
        Small(blocks=4, heads=6, kv_heads=3, seed=9, context=256), MOST[1], of_heads, 200, 160,
        evaluates=1, moved=lambda folder: {"context": 150, **of_heads(folder)},
        refused=({"kv_policy": None},), line="kept by the kv_policy duoattention:sinks=4,",
    ),
    "minference": Method(
        Small(head_dim=32, context=256, seed=9), MOST[2], of_patterns, 256, 256, evaluates=28,
        refused=({"prompt_attention": None}, {"prompt_attention": FEW}),
        line=r"its prompts were read by the prompt_attention MInference\(",
    ),
    "kivi": Method(
        Small(kv_heads=2, head_dim=32, seed=9), MOST[2],
        lambda _: {"kv_format": "KIVI2", "kv_residual": 20}, 320, 200, evaluates=1,
        moved=lambda _: {"context": 200, "batch": 9},
        refused=({"kv_format": "F16"}, {"kv_residual": 64}),
        line="in KIVI2:residual=20, the engine's in (F16|KIVI2:residual=64)$", repeats=8,
    ),
    "minicache": Method(
        Small(kv_heads=2, head_dim=32, seed=9, blocks=3), MOST[3],
        lambda _: {"kv_policy": MiniCache(recent=20)}, 700, 1200, evaluates=1, talk=True,
        moved=lambda _: {"batch": 9}, refused=({"kv_policy": None},),
        line="minicache:retained=5,towards=60,recent=20,start=0, the engine's is none$",
        repeats=21,  # a group is due within the answer
    ),
}  # fmt: skip
LESS = [name for name in METHODS if name not in ("keydiff", "h2o")]  # what takes longer


@pytest.fixture(scope="module")
def loads(tmp_path_factory):
    """For each method, loaders of its model with its options and with others."""

    def load(name: str, method: Method) -> Callable[..., Engine]:
        folder = tmp_path_factory.mktemp(name)
        path, given = method.small.write(folder / "small.gguf"), method.options(folder)
        more = {"threads": 2, "context": method.context, "sequences": 3}
        return partial(Engine.load, path, **more, **given)

    return {name: load(name, method) for name, method in METHODS.items()}


@pytest.mark.parametrize("name", METHODS)
def test_bits_are_independent_of_batch_and_chunks(loads, name):
    """Threads, the split of a prompt, earlier texts, forks, scores and other sequences change no
    bit, even with preemption; nor does continuing a chat instead of reading it at once, where
    promised."""
    load, method = loads[name], METHODS[name]
    prompt = method.prompt
    with load() as engine:
        alone = sampled(engine, prompt)
        tokens = [token for token, _ in alone]
        assert sampled(engine, prompt) == alone
        sampled(engine, prompt[: len(prompt) // 2] + prompt[:9])  # begins alike
        assert sampled(engine, prompt) == alone
        forks = engine.generate(prompt, replace(GREEDY, n=2)).outputs
        assert [list(fork.token_ids) for fork in forks] == [tokens, tokens]
        pieces = list(engine.stream(prompt, replace(GREEDY, n=2)))
        assert [[p.token for p in pieces if p.index == i] for i in (0, 1)] == [tokens, tokens]
        score = engine.score(prompt, prompt[:5])
        assert sampled(engine, prompt) == alone
        further = [*prompt, *tokens[:5], 7]  # what was drawn is a prompt's now
        talk = sampled(engine, further)
        assert engine.timings.prompt.tokens == method.evaluates
        engine.reset()
        assert method.talk or sampled(engine, further) == talk
    with load(threads=1, batch=len(prompt) // 7) as engine:
        assert sampled(engine, prompt) == alone
        assert sampled(engine, further) == talk
        assert engine.score(prompt, prompt[:5]) == score
    prompts = [prompt, prompt[:35], prompt[:15] + prompt[20:], prompt, prompt[:10]]
    with load(context=method.crowded, batch=len(prompt) // 3) as engine:
        each = []
        for one in prompts:
            each.append(engine.generate(one, GREEDY).outputs[0].token_ids)
            engine.reset()
        many = engine.generate(prompts, GREEDY)
        assert [found.outputs[0].token_ids for found in many] == each
        assert each[0] == tuple(tokens)
        engine.reset()
        cells = engine.model.cells
        assert (cells.free, getattr(engine.model.method, "packed", 0)) == (method.crowded, 0)


@pytest.mark.parametrize("name", LESS)
def test_drafts_change_no_bit(loads, name):
    """Drafted tokens, in chains or trees, trigger no eviction, selection or packing."""
    load, method = loads[name], METHODS[name]
    prompt, asked = method.prompt[:12] * method.repeats, replace(GREEDY, max_tokens=40)
    with load() as plain:
        wanted = plain.generate(prompt, asked).outputs[0].token_ids
    for drafting in method.drafting:
        with load(speculation=drafting) as engine:
            assert engine.generate(prompt, asked).outputs[0].token_ids == wanted
            assert engine.timings.speculation.drafted


@pytest.mark.parametrize("name", LESS)
def test_sessions_resume(loads, name, tmp_path):
    """A saved text continues as if uninterrupted; one of another method is refused in a line."""
    load, method, path = loads[name], METHODS[name], tmp_path / "talk.session"
    with load() as engine:
        whole = engine.generate(method.prompt, GREEDY).outputs[0].token_ids
        engine.reset()
        begun = engine.generate(method.prompt, replace(GREEDY, max_tokens=3)).outputs[0].token_ids
        engine.save(path)
    with load(**method.moved(tmp_path)) as other:
        other.generate(method.prompt[:45], GREEDY)
        tokens = other.restore(path)
        assert tokens == method.prompt + list(begun)
        rest = other.stream(tokens, replace(GREEDY, max_tokens=5), resume=True)
        assert begun + tuple(piece.token for piece in rest) == whole
        assert other.timings.prompt.tokens == 1
    for given in method.refused:
        with load(**given) as other, pytest.raises(SessionError, match=method.line):
            other.restore(path)


KNORM, QUEST, MINICACHE = (
    {"kv_policy": policy} for policy in (Knorm(9), Quest(12, page=4), MiniCache(recent=20))
)
DUO, KIVI = {"kv_policy": DuoAttention(4, 9, 5, heads="heads.tsv")}, {"kv_format": "KIVI2"}
PATTERNED = {"prompt_attention": FEW}
OF_A_WINDOW, LATENT = SUBJECTS["Gemma 3, no cap, untied, F16"], SUBJECTS["DeepSeek-V2"]
MODELS = [
    (KNORM, SUBJECTS["MPT"], "Knorm: .*go by distance"),
    (KNORM, OF_A_WINDOW, "sees a window of the text as it is"),
    (KNORM, SUBJECTS["gpt-oss"], "blk.0 (has sinks|sees a window)"),
    (KNORM, LATENT, "has no keys and values of its own"),
    (KNORM, RECURRENT["LFM 2"], "blocks of this model are recurrent"),
    (KNORM, RECURRENT["Mamba"], "blocks of this model are recurrent"),
    (QUEST, SUBJECTS["MPT"], "Quest: .*go by distance"),
    (QUEST, OF_A_WINDOW, "sees a window of the text as it is"),
    (QUEST, SUBJECTS["gpt-oss"], "blk.0 (has sinks|sees a window)"),
    (QUEST, LATENT, "has no keys and values of its own"),
    (QUEST, RECURRENT["Mamba"], "blocks of this model are recurrent"),
    (DUO, OF_A_WINDOW, "sees a window of the text as it is"),
    (DUO, LATENT, "has no keys and values of its own"),
    (DUO, RECURRENT["Mamba"], "blocks of this model are recurrent"),
    (PATTERNED, SUBJECTS["MPT"], "has ALiBi"),
    (PATTERNED, OF_A_WINDOW, "sees a window"),
    (PATTERNED, RECURRENT["LFM 2"], "recurrent"),
    (PATTERNED, Small(), "heads of blk.0 have 16 elements"),
    (PATTERNED | KNORM, Small(), "kv_policy and prompt_attention exclude each other"),
    (KIVI, OF_A_WINDOW, "sees a window of the text"),
    (KIVI, RECURRENT["Mamba"], "are recurrent"),
    (KIVI, Small(kv_heads=2, head_dim=16), "the 16 elements of a head of blk.0 are no whole num"),
    (MINICACHE, OF_A_WINDOW, "sees a window of the text"),
    (MINICACHE, replace(RECURRENT["Mamba"], blocks=4), "are recurrent"),
    (MINICACHE, LATENT, "has no keys and values of its own"),
    (MINICACHE, Small(blocks=2), "2 blocks: the 0 from 2 on do not form pairs"),
    (MINICACHE, Small(kv_heads=2, head_dim=8, blocks=4), "have 8 elements: want a multiple of 16"),
]


@pytest.mark.parametrize(("options", "small", "line"), MODELS)
def test_unsupported_models_are_refused(tmp_path, options, small, line):
    """One line says why, before a kernel is chosen."""
    path = small.write(tmp_path / "model.gguf")
    with pytest.raises(EngineError, match=line) as refused:
        Engine.load(path, threads=1, context=300, **options)
    assert "\n" not in str(refused.value)


OTHERS = [
    ("snapkv", {"kv_policy": Knorm(96)}, "keeps 96 cells, which is all of a context"),
    ("snapkv", {"kv_policy": "snapkv"}, "kv_policy must be a SnapKV etc., got 'snapkv'"),
    ("snapkv", {"ram_budget": "1GiB"}, "ram_budget and kv_policy"),
    ("snapkv", {"mtp": True}, "own draft block and kv_policy"),
    ("quest", {"kv_policy": Quest(96, page=4)}, "Quest reads 24 pages of 4 cells"),
    ("quest", {"kv_format": "Q8_0"}, "in Q8_0, .* want kv_format F32 or F16"),
    ("quest", {"ram_budget": "1GiB"}, "ram_budget and kv_policy"),
    ("kivi", {"kv_policy": SnapKV(20, window=6)}, "^kv_format KIVI2 and kv_policy exclude each ot"),
    ("kivi", {"ram_budget": "1GiB"}, "^kv_format KIVI2 and ram_budget exclude each other$"),
    ("kivi", {"kv_residual": 0}, "^kv_residual must be at least 1, got 0$"),
    ("kivi", {"kv_format": "KIVI3"}, "^kv_format is 'KIVI3': want F32, F16, Q8_0, Q4_0, KIVI2$"),
    ("minicache", {"kv_format": "Q8_0"}, "MiniCache merges cells in F16: kv_format is Q8_0"),
    ("minicache", {"kv_format": "KIVI2"}, "kv_format KIVI2 and kv_policy exclude each other"),
    ("minicache", {"context": 270}, "which is all of a context of 270: nothing would be merged"),
    ("minicache", {"kv_policy": MiniCache(start=2)}, "3 blocks: the 1 from 2 on do not form pai"),
    ("minicache", {"kv_policy": MiniCache(start=7)}, "start is 7, and the model has 3 blocks"),
]


@pytest.mark.parametrize(("name", "options", "line"), OTHERS)
def test_incompatible_options_are_refused(loads, name, options, line):
    """Each combination has a one-line error."""
    with pytest.raises(EngineError, match=line) as refused:
        loads[name](**options)
    assert "\n" not in str(refused.value)
