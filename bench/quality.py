"""Quality by weight format: the embedded story model in every format, its perplexity on stories
beside the grammar's own, and its divergence from F16.

Each story is read on its own, from its first token to its end, as in training; so the floor, which
no model can beat, is exact: the probability with which the grammar writes each story.
"""

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np

from bench.race.results import Measurement
from data.golden import FOLDER as GOLDEN
from data.story.grammar import log_probability
from engine import Engine
from engine.embedded import embedded_models, resolve
from engine.gguf.file import GGUFFile
from engine.perplexity import Coded, Estimate, Passage, Scorer, Tally
from engine.quantise import Recipe, quantise
from engine.quantise.mixes import MIXES
from engine.tokenizer import Tokenizer

MODEL, BASE = "story", "F16"
HELD_OUT = GOLDEN.parent / "story" / "held_out.txt"
STORIES = 200
ROWS = 256  # logits at once; no story is much longer
# From the formats that keep most of a model to those that keep least: by llama.cpp's figures of
# mixes of the same formats, and by bits per weight where there are none.
EXPECTED = (
    "F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K", "Q5_1", "Q5_0", "Q4_K", "IQ4_NL", "IQ4_XS",
    "Q4_1", "Q4_0", "MXFP4", "Q3_K", "IQ3_S", "IQ3_XXS", "Q2_K", "IQ2_S", "IQ2_XS", "IQ2_XXS",
    "TQ2_0", "TQ1_0", "IQ1_M", "IQ1_S",
)  # fmt: skip
# llama.cpp's figures: what each mix adds to Llama-3-8B's perplexity of 6.233 on wikitext-2.
LLAMA_3 = {
    "Q8_0": 0.0027, "Q6_K": 0.022, "Q5_K_M": 0.057, "Q5_K_S": 0.105, "Q5_1": 0.106, "Q5_0": 0.132,
    "Q4_K_M": 0.175, "Q4_K_S": 0.269, "Q4_1": 0.451, "Q4_0": 0.469, "Q3_K_M": 0.657, "Q2_K": 3.52,
}  # fmt: skip
QUICK = ("F16", "Q8_0", "Q4_0", "Q2_K")
PURE, MIXED = "pure", "mix"

BENCH = "quality"
FLOOR, BITS, LOSS, GAIN = "floor", "bits a weight", "perplexity", "perplexity over F16's"
DIVERGENCE, SAME = "KL divergence", "same likeliest token"
ERROR = ", standard error"


def row_of(name: str, kind: str, threads: int) -> Measurement:
    """The row of a format, or of the mix of that name (`kind` is PURE or MIXED)."""
    model = resolve(MODEL).name
    return Measurement(BENCH, "", variant=kind, format=name, model=model, threads=threads)


def figure(row: Measurement, test: str, value: float, unit: str) -> Measurement:
    return replace(row, test=test, samples=(value,), unit=unit)


def estimates(
    row: Measurement, perplexity: Estimate, divergence: Estimate, same_top: Estimate
) -> Iterator[Measurement]:
    """A row like this for each figure of a comparison, and for its standard error: perplexity, KL
    divergence in nats, and the share of equal argmax tokens."""
    for test, estimate, unit in (
        (LOSS, perplexity, "perplexity"),
        (DIVERGENCE, divergence, "nats"),
        (SAME, same_top, "share"),
    ):
        # a negative divergence is the rounding of the base's 16 bits
        yield figure(row, test, max(0.0, estimate.value), unit)
        yield figure(row, test + ERROR, estimate.error, unit)


def pure(formats: Sequence[str] = EXPECTED) -> dict[str, Recipe]:
    """All matrices in one format, for the formats that can be written."""
    named = {mix.base: name for name, mix in reversed(MIXES.items())}
    return {name: Recipe(named[name], pure=True) for name in formats if name in named}


def mixed() -> dict[str, Recipe]:
    """llama.cpp's mixes."""
    return {name: Recipe(name) for name in LLAMA_3}


def floor(told: Sequence[str], threads: int) -> Measurement:
    """The perplexity of the grammar that wrote the stories, over scored tokens."""
    tokens = sum(len(passage.scored_tokens) for passage in passages(resolve(MODEL), told))
    nats = -sum(map(log_probability, told))
    return figure(row_of("", "", threads), FLOOR, math.exp(nats / tokens), "perplexity")


def stories(count: int = STORIES) -> list[str]:
    """Held-out stories, outside the training set."""
    return HELD_OUT.read_text().splitlines()[:count]


def passages(model: Path, told: Sequence[str]) -> list[Passage]:
    """Each story's tokens, with BOS and EOS."""
    with GGUFFile(model) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
    assert tokenizer.eos_id is not None
    return [Passage([*tokenizer.encode(story), tokenizer.eos_id]) for story in told]


def opening(model: Path, vocab: int, length: int, number: int) -> list[int]:
    """So many tokens: for an embedded story model, from the beginning of a story, else random.
    Another number gives other tokens."""
    if model in embedded_models().values():
        told = _told(model)
        number %= len(told)
        return list(chain(*told[number:], *told[:number]))[:length]
    return [int(token) for token in np.random.default_rng(number).integers(0, vocab, length)]


@cache
def _told(model: Path) -> list[Sequence[int]]:
    return [passage.tokens for passage in passages(model, stories())]


def qualities(
    kinds: Mapping[str, Mapping[str, Recipe]], told: Sequence[str], threads: int
) -> Iterator[list[Measurement]]:
    """Rows of each recipe: quantise the model, read the stories, compare with F16."""
    source = resolve(MODEL)
    texts = passages(source, told)
    base, coded = _read(source, texts, threads, keep=True)
    recipes = [(kind, *item) for kind, named in kinds.items() for item in named.items()]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        for kind, name, recipe in recipes:
            with GGUFFile(source) as file:
                quantise(file, path, recipe, threads=threads)
            found, _ = _read(path, texts, threads, coded)
            comparison = found.comparison(exact=base)
            assert comparison is not None
            row = row_of(name, kind, threads)
            loss = found.perplexity().perplexity
            yield [
                figure(row, BITS, bits(path), "bits"),
                *estimates(row, loss, comparison.divergence, comparison.same_top),
                figure(row, GAIN + ERROR, comparison.difference.error, "perplexity"),
            ]


def _read(
    path: Path,
    texts: Sequence[Passage],
    threads: int,
    coded: Sequence[Coded] | None = None,
    keep: bool = False,
) -> tuple[Tally, list[Coded]]:
    with Engine.load(path, threads=threads, context=longest(texts), outputs=ROWS) as engine:
        return scores(engine, texts, coded, keep)


def longest(texts: Sequence[Passage]) -> int:
    return max(len(text.tokens) for text in texts)


def scores(
    engine: Engine,
    texts: Sequence[Passage],
    coded: Sequence[Coded] | None = None,
    keep: bool = False,
) -> tuple[Tally, list[Coded]]:
    """A model's scores against a base's log-probabilities, or recorded as a base."""
    kept: list[Coded] = []
    scorer, tally, vocab = Scorer(engine), Tally(), engine.model.config.vocab
    for i, text in enumerate(texts):
        if keep:
            kept.append(Coded.empty(len(text.scored_tokens), vocab))
        tally.add(scorer.read(text, coded[i] if coded else None, kept[-1] if keep else None))
    return tally, kept


def bits(path: Path) -> float:
    """Mean bits per weight of a file, norms included."""
    with GGUFFile(path) as file:
        sizes = [(tensor.n_bytes, math.prod(tensor.dims)) for tensor in file.tensors.values()]
    stored, weights = np.sum(sizes, axis=0)
    return float(8 * stored / weights)
