"""Every drafter, on the embedded models: the text is the plain one, greedy and seeded, in every
format, with any number of threads and any draft length. Quick runs try for each drafter and format
one number of threads and one length, so that all pairs of the four occur; ASSAY_DEEP=1 tries every
combination."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from conformance.support.depth import DEEP
from conformance.support.speculation.speculating import demand_settled, pieces, unmarked
from engine import Engine, Piece
from engine.embedded import resolve
from engine.gguf.file import GGUFFile
from engine.quantise import Recipe, quantise
from engine.speculation.settings import (
    Linear,
    Lookahead,
    LookaheadTrie,
    PromptLookup,
    Settings,
    Tree,
)

# The same beginning twice: there is something to look up.
TEXT = "Once upon a time there was a little cat. The cat was happy. Once upon a time there was a"
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"max_tokens": 40, "ignore_eos": True, "logprobs": 2},
    "penalised": {"max_tokens": 40, "temperature": 0.8, "seed": 5, "repetition_penalty": 1.1,
                  "frequency_penalty": 0.1, "top_k": 40, "min_p": 0.05},
    "mirostat": {"max_tokens": 40, "temperature": 0.8, "seed": 6, "mirostat": 2,
                 "mirostat_tau": 2.0},
}  # fmt: skip
FORMATS = ("F32", "F16", "Q8_0", "Q4_0", "Q4_K")
TYPES = {"Q4_K": "Q4_K_M"}  # llama.cpp's mix of which a format is the main one
LENGTHS = (1, 2, 5, 16)
THREADS = (1, 2, 3)
STRICTER = 1.5  # than the threshold of story-relu, 1


@dataclass(frozen=True, slots=True)
class Setup:
    """A drafter with this draft length; with a draft model, or within the sparse one."""

    settings: Callable[[int], Settings]
    draft: bool = False
    target: str = "story"

    def options(self, path: Callable[[str, str], Path], length: int) -> dict[str, Any]:
        draft = path("story-draft", "Q4_0" if length % 2 else "Q8_0") if self.draft else None
        return {"speculation": self.settings(length), "draft": draft}


WAYS: dict[str, Setup] = {
    "linear": Setup(lambda n: Linear(n, draft_p_min=0.3, adaptive=False), draft=True),
    "tree": Setup(
        lambda n: Tree(n, draft_p_min=0.1, p_split=0.05, n_parallel=3, adaptive=False), draft=True
    ),
    "adaptive": Setup(lambda n: Linear(n, draft_p_min=0.3), draft=True),
    "self": Setup(lambda n: Linear(n, threshold=STRICTER, adaptive=False), target="story-relu"),
    "self, as a tree": Setup(
        lambda n: Tree(n, draft_p_min=0.1, p_split=0.05, threshold=STRICTER, adaptive=False),
        target="story-relu",
    ),
    "lookup": Setup(lambda n: PromptLookup(n, prompt_lookup_min=1, adaptive=False)),
    "trie": Setup(lambda n: LookaheadTrie(n, adaptive=False)),
    "lookahead": Setup(lambda n: Lookahead(W=1 + n // 4, N=3, G=n)),
}
ALL = list(product(WAYS, FORMATS, THREADS, LENGTHS))
COVERING = [
    (way, form, THREADS[(i + j) % 3], LENGTHS[(i + 3 * j) % 4])
    for i, way in enumerate(WAYS)
    for j, form in enumerate(FORMATS)
]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A function of an embedded model's name and a format: the file in that format, made once."""
    folder = tmp_path_factory.mktemp("stories")

    @cache
    def made(name: str, format: str) -> Path:
        path = folder / f"{name}-{format}.gguf"
        with GGUFFile(resolve(name)) as file:
            quantise(file, path, Recipe(TYPES.get(format, format), pure=True, requantise=True))
        return path

    return made


@pytest.fixture(scope="module")
def plain(path):
    """A target's text in a format, with these sampling parameters, on one thread."""

    @cache
    def engine(target: str, format: str) -> dict[str, list[Piece]]:
        with loaded(path(target, format), target, threads=1) as alone:
            return {name: pieces(alone, TEXT, params) for name, params in SAMPLING.items()}

    return lambda target, form, sampling: engine(target, form)[sampling]


def loaded(path: Path, target: str, **options: Any) -> Engine:
    """With room for the longest text alone, skipping neurons if the target can."""
    sparse = "on" if target == "story-relu" else "auto"
    return Engine.load(path, context=128, batch=64, sparse=sparse, **options)


def test_the_few_combinations_cover_all_pairs():
    """Each value of each of the four is combined with each value of the others."""
    for a in range(4):
        for b in range(a):
            assert {(c[a], c[b]) for c in COVERING} == {(c[a], c[b]) for c in ALL}


@pytest.mark.parametrize(("way", "format", "threads", "length"), ALL if DEEP else COVERING)
def test_drafters_change_no_piece(path, plain, way, format, threads, length):
    """Pieces are equal, log-probabilities bit for bit; also the second time, when a trie knows the
    text and an adaptive length has measurements. Each drafter predicts some tokens of the greedy
    text in F16. (An adaptive length may rightly be 0.)"""
    target = WAYS[way].target
    options = WAYS[way].options(path, length)
    with loaded(path(target, format), target, threads=threads, **options) as engine:
        for name, params in SAMPLING.items():
            expected = plain(target, format, name)
            for _ in range(2):
                engine.reset()
                drafted = pieces(engine, TEXT, params)
                assert unmarked(drafted) == expected
                demand_settled(engine)
            if (name, format) == ("greedy", "F16") and way != "adaptive":
                assert any(piece.drafted for piece in drafted)


def test_draft_models_survive_context_shift(path):
    """If a text outgrows the context, the target's is shifted and the draft model reads only the
    end: the text is the plain one, and its last part is drafted as well."""
    long = {"max_tokens": 150, "ignore_eos": True}
    options = {"context": 48, "threads": 1}
    with Engine.load(path("story", "F16"), **options) as engine:
        plain = pieces(engine, TEXT, long, context_shift=True)
    for settings in (Linear(6, adaptive=False), Tree(6, adaptive=False)):
        with Engine.load(
            path("story", "F16"), draft=path("story-draft", "F16"), speculation=settings, **options
        ) as engine:
            drafted = pieces(engine, TEXT, long, context_shift=True)
            demand_settled(engine)
        assert unmarked(drafted) == plain
        assert sum(piece.drafted for piece in drafted[-50:]) > 10
