"""Drafts for targets that skip neurons, are streamed from disk or have a quantised cache; draft
models with other vocabularies."""

import re
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from conformance.support.depth import DEEP
from conformance.support.models.small_models import Small
from conformance.support.models.sparse_files import SmallSparse
from conformance.support.models.spelling import Spelling
from conformance.support.speculation.oracle import Oracle
from conformance.support.speculation.speculating import (
    ROOM,
    demand_settled,
    drafting,
    ids,
    pieces,
    unmarked,
)
from engine import Engine, Piece
from engine.config import ModelError
from engine.speculation.settings import Linear, LookaheadTrie, PromptLookup, Tree

TEXT = "Once upon a time there was a little"
GREEDY: dict[str, Any] = {"max_tokens": 50, "ignore_eos": True, "logprobs": 1}
SEEDED: dict[str, Any] = {**GREEDY, "temperature": 0.9, "seed": 3, "repetition_penalty": 1.1}
STRICTER = 1.5  # than story-relu's threshold of 1


@cache
def plain(
    target: str | Path, prompt: Any, options: tuple[tuple[str, Any], ...]
) -> list[list[Piece]]:
    """The pieces without a draft, greedy and seeded."""
    with Engine.load(target, **dict(options)) as engine:
        return [pieces(engine, prompt, params) for params in (GREEDY, SEEDED)]


def same_text(target: str | Path, prompt: Any = TEXT, **options: Any) -> int:
    """With and without drafts the pieces are equal; returns the drafted and accepted tokens."""
    draft = {name: options.pop(name, None) for name in ("draft", "speculation")}
    expected = plain(target, prompt, tuple(options.items()))
    accepted = 0
    with Engine.load(target, **options, **draft) as engine:
        for params, found in zip((GREEDY, SEEDED), expected, strict=True):
            assert unmarked(pieces(engine, prompt, params)) == found
            demand_settled(engine)
            accepted += engine.timings.speculation.accepted
    return accepted


LINEAR = Linear(5, draft_p_min=0.3, adaptive=False)
TREE = Tree(9, draft_p_min=0.1, p_split=0.05, n_parallel=3, adaptive=False)
DRAFTING: dict[str, dict[str, Any]] = {
    "a model": {"draft": "story-draft", "speculation": LINEAR},
    "a model's tree": {"draft": "story-draft", "speculation": TREE},
    "itself": {"speculation": replace(LINEAR, threshold=STRICTER)},
    "its own tree": {"speculation": replace(TREE, threshold=STRICTER)},
    "lookup": {"speculation": PromptLookup(4, prompt_lookup_min=1, adaptive=False)},
    "trie": {"speculation": LookaheadTrie(8, adaptive=False)},
}
MODELS = [name for name in DRAFTING if name not in ("lookup", "trie")]
FORMATS = ("F32", "F16", "Q8_0", "Q4_0")
ALL = list(product(MODELS, FORMATS))
# Each drafter meets two formats, and each format two drafters.
COVERING = [(m, f) for i, m in enumerate(MODELS) for f in (FORMATS[i], FORMATS[i - 2])]


@pytest.mark.parametrize(
    ("name", "kv", "sparse"),
    [
        *((*pair, "on") for pair in (ALL if DEEP else COVERING)),
        *product(MODELS[:2], ["F16"], ["off"]),
    ],
)
def test_drafts_for_a_sparse_target(name, kv, sparse):
    """Masks are each token's own, so a verified batch gives the bits of single steps, for any cache
    format and drafter."""
    options = {"context": 96, "threads": 3 if kv == "Q4_0" else 2, "sparse": sparse}
    assert same_text("story-relu", kv_format=kv, **options, **DRAFTING[name]) > 10


@pytest.mark.parametrize("name", ["a model's tree", "itself", "lookup", "trie"])
def test_drafts_for_a_streamed_target(name):
    """Streamed weights are the same for several verified tokens as for one."""
    options: dict[str, Any] = {"context": 96, "batch": 32, "threads": 2, "sparse": "on"}
    with Engine.load("story-relu", **options) as engine:
        plain = pieces(engine, TEXT, GREEDY)
    options |= DRAFTING[name]
    with pytest.raises(ModelError, match="is too small") as refused:
        Engine.load("story-relu", **options, ram_budget="1MiB")
    least = re.search(r"at least (\d+) MiB", str(refused.value))
    with Engine.load("story-relu", **options, ram_budget=f"{int(least[1]) + 2}MiB") as engine:
        assert unmarked(pieces(engine, TEXT, GREEDY)) == plain
        demand_settled(engine)
        assert engine.model.offload.readers.statistics.bytes > 0
        assert engine.timings.speculation.drafted > 0


def test_drafts_with_the_union_of_all_neurons(tmp_path):
    """With a union a token's logits depend on its batch, and so may the text. With every neuron
    active they do not; and the same drafts give the same text."""
    path = SmallSparse(seed=5).write(tmp_path / "sparse.gguf")
    options: dict[str, Any] = {"sparse": "on", "union": True, "threads": 2, **ROOM}
    for threshold in (float("-inf"), 0.0):
        with Engine.load(path, threshold=threshold, **options) as engine:
            plain = pieces(engine, [1, 5, 8], GREEDY)
            texts = []
            for siblings in (0, 2, 0, 2):
                engine.reset()
                with drafting(engine, Oracle([1, 5, 8, *ids(plain)], 70, 0.3, siblings)):
                    texts.append(unmarked(pieces(engine, [1, 5, 8], GREEDY)))
            assert texts[:2] == texts[2:]
            if threshold < 0:
                assert texts[0] == texts[1] == plain


def test_a_draft_model_is_translated(tmp_path):
    """A model of letters drafts for one of words; for equal vocabularies nothing is lost."""
    letters = Spelling().write(tmp_path / "letters.gguf")
    options = {"context": 96, "threads": 2}
    for kind in (Linear, Tree):
        settings = kind(6, draft_p_min=0.0, translate=True, adaptive=False)
        same_text("story", draft=letters, speculation=settings, **options)
        assert same_text("story", draft="story-draft", speculation=settings, **options) > 10


@pytest.mark.parametrize(("target", "draft"), [(70, 100), (100, 70)])
def test_a_vocabulary_with_more_tokens(tmp_path, target, draft):
    """Tokens of only one of the two are never drafted, or end the draft, but not the text."""
    paths = [
        Small(vocab=vocab, seed=vocab).write(tmp_path / f"{vocab}.gguf")
        for vocab in (target, draft)
    ]
    settings = Linear(4, draft_p_min=0.0, adaptive=False)
    same_text(paths[0], (1, 5, 8), draft=paths[1], speculation=settings, threads=1)
