"""What each weight format leaves of a model: the embedded story model in every one of them, its
perplexity on stories beside the grammar's own, and how far it is from F16.

Each story is read on its own, from its first token to its end, as the model was trained to; so the
floor, which no model can beat, is exact: the probability with which the grammar writes each story.
"""

import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.results import Measurement
from data.golden import FOLDER as GOLDEN
from data.story.grammar import log_probability
from engine import Engine
from engine.embedded import resolve
from engine.gguf_file import GGUFFile
from engine.perplexity import Coded, Estimate, Passage, Scorer, Tally
from engine.quantise import Recipe, quantise
from engine.quantise.mixes import MIXES
from engine.tokenizer import Tokenizer
from reference.formats import FORMATS

MODEL, BASE = "story", "F16"
HELD_OUT = GOLDEN.parent / "story" / "held_out.txt"
STORIES = 200
ROWS = 256  # of logits at once; no story is much longer
# From what keeps most of a model to what keeps least, as llama.cpp's figures of Llama-3-8B on
# wikitext-2 have it (Q8_0 to Q2_K) and bits a weight for the rest.
EXPECTED = (
    "F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q5_K", "Q5_1", "Q5_0", "Q4_K_M", "Q4_K",
    "IQ4_NL", "IQ4_XS", "Q4_1", "Q4_0", "MXFP4", "Q3_K_L", "Q3_K_M", "Q3_K", "IQ3_S", "IQ3_XXS",
    "Q2_K", "IQ2_S", "IQ2_XS", "IQ2_XXS", "TQ2_0", "TQ1_0", "IQ1_M", "IQ1_S",
)  # fmt: skip
QUICK = ("F16", "Q8_0", "Q4_0", "Q2_K")

BENCH = "quality"
FLOOR, BITS, LOSS, GAIN = "floor", "bits a weight", "perplexity", "perplexity over F16's"
DIVERGENCE, SAME = "KL divergence", "same likeliest token"
ERROR = ", standard error"


@dataclass(frozen=True, slots=True)
class Quality:
    """Of a format or mix: bits of all weights on average, and the perplexity; beside F16 the
    difference of perplexities, the KL divergence in nats, the share of same likeliest tokens."""

    name: str
    bits: float
    perplexity: Estimate
    difference: Estimate
    divergence: Estimate
    same_top: Estimate

    def measurements(self, threads: int) -> Iterator[Measurement]:
        """A row for each figure and for its error."""
        yield _row(BITS, self.name, self.bits, "bits", threads)
        for test, estimate, unit in (
            (LOSS, self.perplexity, "perplexity"),
            (DIVERGENCE, self.divergence, "nats"),
            (SAME, self.same_top, "share"),
        ):
            # a divergence below zero is the rounding of the base's 16 bits
            yield _row(test, self.name, max(0.0, estimate.value), unit, threads)
            yield _row(test + ERROR, self.name, estimate.error, unit, threads)
        yield _row(GAIN + ERROR, self.name, self.difference.error, "perplexity", threads)


def _row(test: str, format: str, value: float, unit: str, threads: int) -> Measurement:
    return Measurement(
        bench=BENCH,
        test=test,
        format=format,
        model=resolve(MODEL).name,
        threads=threads,
        samples=(value,),
        unit=unit,
    )


def recipe(name: str) -> Recipe:
    """All matrices in one format where that is the name of one; else the mix of that name."""
    if name not in FORMATS:
        return Recipe(name)
    of_base = {mix.base: name for name, mix in reversed(MIXES.items())}
    return Recipe(of_base[name], pure=True)


def names() -> list[str]:
    """Of those expected, what can be written."""
    bases = {mix.base for mix in MIXES.values()}
    return [n for n in EXPECTED if (n in bases if n in FORMATS else n in MIXES)]


def floor(told: Sequence[str], threads: int) -> Measurement:
    """The perplexity of the grammar that wrote the stories, of the tokens that count."""
    tokens = sum(len(passage.foretold) for passage in passages(resolve(MODEL), told))
    nats = -sum(map(log_probability, told))
    return _row(FLOOR, "", math.exp(nats / tokens), "perplexity", threads)


def stories(count: int = STORIES) -> list[str]:
    """Held-out ones, which no training drew."""
    return HELD_OUT.read_text().splitlines()[:count]


def passages(model: Path, told: Sequence[str]) -> list[Passage]:
    """Each story's tokens, BOS in front and EOS behind."""
    with GGUFFile(model) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
    assert tokenizer.eos_id is not None
    return [Passage([*tokenizer.encode(story), tokenizer.eos_id]) for story in told]


def qualities(wanted: Sequence[str], told: Sequence[str], threads: int) -> Iterator[Quality]:
    """Quantise the model, read the stories, compare with what F16 said, one after the other."""
    source = resolve(MODEL)
    texts = passages(source, told)
    base, coded = _read(source, texts, threads, keep=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in wanted:
            path = Path(folder) / f"{name}.gguf"
            with GGUFFile(source) as file:
                quantise(file, path, recipe(name), threads=threads)
            found, _ = _read(path, texts, threads, coded)
            comparison = found.comparison(exact=base)
            assert comparison is not None
            yield Quality(
                name,
                bits(path),
                found.perplexity().perplexity,
                comparison.difference,
                comparison.divergence,
                comparison.same_top,
            )
            path.unlink()


def _read(
    path: Path,
    texts: Sequence[Passage],
    threads: int,
    coded: Sequence[Coded] | None = None,
    keep: bool = False,
) -> tuple[Tally, list[Coded]]:
    """A model's scores, beside a base's log-probabilities or with those to be a base."""
    longest, kept = max(len(text.tokens) for text in texts), []
    with Engine.load(path, threads=threads, context=longest, outputs=ROWS) as engine:
        scorer, tally, vocab = Scorer(engine), Tally(), engine.model.config.vocab
        for i, text in enumerate(texts):
            if keep:
                kept.append(Coded.empty(len(text.foretold), vocab))
            tally.add(scorer.read(text, coded[i] if coded else None, kept[-1] if keep else None))
    return tally, kept


def bits(path: Path) -> float:
    """Of a file's weights, norms and all, on average."""
    with GGUFFile(path) as file:
        sizes = [(tensor.n_bytes, math.prod(tensor.dims)) for tensor in file.tensors.values()]
    stored, weights = np.sum(sizes, axis=0)
    return float(8 * stored / weights)
