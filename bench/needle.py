"""Whether what a policy keeps holds the answer: facts told at every depth of a long text and asked
for at its end, by the share of the text that is kept.

`python -m bench.needle [MODEL] [-o PAGE.md]` reads tales like those that `story-long` was trained
on (data/story/tales.py). Each question ends a prompt of its own and is answered greedily; right is
the fact word for word. Perplexity is of what a tale goes on to ask, behind a prompt that was read
before any of it was known; no model can beat the grammar's own.
"""

import math
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bench.quality import figure
from bench.race.program import Tell, common, report
from bench.race.results import Measurement
from bench.report.needle import ANSWERED, BENCH, FLOOR, FULL, PERPLEXITY, section
from data.story.tales import Fact, Tale
from engine import Engine, SamplingParams
from engine.embedded import resolve
from engine.gguf.file import GGUFFile
from engine.policies.retrieval import alphas, write
from engine.policies.table import POLICIES, parse_policy
from engine.sampling.params import Logits
from engine.tokenizer import Tokenizer
from reference.formats.kivi import KIVI

MODEL = "story-long"
SEED = 25_001  # of tales outside the training set
ANSWER = 4  # tokens at the end of an answer, which look for it
STORIES = 0.1  # of a tale's parts
RECENT = 0.5  # of what H2O keeps, as in its paper
SINKS = 1 / 3  # of the cells that streaming heads see, as in their paper,
SEEN = 0.02  # the smallest part of a text
OTHER_SEED = SEED + 1  # tales by which heads are told apart


@dataclass(frozen=True, slots=True)
class Effort:
    """So many `tales` of `tokens` tokens, each asked at so many `depths`; and at least how many
    more tokens are scored for perplexity."""

    tales: int
    tokens: int
    depths: int
    following: int
    budgets: Sequence[float]


THOROUGH = Effort(5, 3700, 6, 200, (0.05, 0.125, 0.25, 0.5))
QUICK = Effort(1, 300, 2, 30, (0.3,))


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt that ends with the question for a fact, and the index of its depth, 0 the
    earliest."""

    prompt: Sequence[int]
    fact: Fact
    depth: int


@dataclass(frozen=True, slots=True)
class Continued:
    """A prompt's continuation, and its log probability (nats) under the grammar."""

    prompt: Sequence[int]
    following: Sequence[int]
    log_probability: float


@dataclass(slots=True)
class ForcedText:
    """A logits processor that forces these tokens and records the NLL of each in nats."""

    tokens: Sequence[int]
    nll: list[float] = field(default_factory=list)

    def __call__(self, _: list[int], logits: Logits) -> Logits:
        token = self.tokens[len(self.nll)]
        self.nll.append(float(np.logaddexp.reduce(logits.astype(np.float64)) - logits[token]))
        forced = np.full_like(logits, -np.inf)
        forced[token] = 0
        return forced


def cases(
    tokenizer: Tokenizer, effort: Effort, seed: int = SEED
) -> tuple[list[Asked], list[Continued]]:
    """Questions for the facts nearest to the middle of each stretch of a tale, and the tale's own
    continuation."""
    asked, continued = list[Asked](), list[Continued]()
    for number in range(effort.tales):
        tale = Tale(np.random.default_rng([seed, number]), STORIES)
        prompt, told = list[int](), dict[Fact, int]()
        while len(prompt) < effort.tokens:
            part = tale.tell()
            if part.fact:
                told[part.fact] = len(prompt)
            prompt += _encoded(tokenizer, part.text, begins=not prompt)
        facts, places = list(told), np.array(list(told.values()))
        for depth in range(effort.depths):
            middle = (depth + 0.5) / effort.depths * len(prompt)
            fact = facts[int(np.abs(places - middle).argmin())]
            asked.append(Asked([*prompt, *_encoded(tokenizer, fact.question)], fact, depth))
        following, log_probability = list[int](), 0.0
        while len(following) < effort.following:
            part = tale.ask()
            following += _encoded(tokenizer, part.text)
            log_probability += part.log_probability
        continued.append(Continued(prompt, following, log_probability))
    return asked, continued


def _encoded(tokenizer: Tokenizer, text: str, begins: bool = False) -> list[int]:
    """A part's tokens, after BOS or after a space."""
    return tokenizer.encode(text if begins else f" {text}", add_special=begins)


def looked_up(tokenizer: Tokenizer, effort: Effort, seed: int = OTHER_SEED) -> list[list[int]]:
    """Texts that end with a question and its answer, from which retrieval heads are found."""
    asked = cases(tokenizer, effort, seed)[0]
    return [[*one.prompt, *_encoded(tokenizer, one.fact.told)] for one in asked]


def answers(engine: Engine, asked: Asked) -> bool:
    """Whether the engine continues with the fact."""
    right = _encoded(engine.tokenizer, asked.fact.told)
    params = SamplingParams(temperature=0, max_tokens=len(right))
    return engine.generate(asked.prompt, params).text.strip() == asked.fact.told


def nats(engine: Engine, continued: Continued) -> list[float]:
    """NLL of each token of a continuation, after the policy's eviction of the prompt."""
    forced = ForcedText(continued.following)
    most = len(continued.following)
    params = SamplingParams(temperature=0, max_tokens=most, logits_processors=[forced])
    engine.generate(continued.prompt, params)
    return forced.nll


@dataclass(frozen=True, slots=True)
class Heads:
    """A file of per-head scores by which `count` KV heads are told apart."""

    file: Path
    count: int

    def text(self, budget: float, longest: int) -> str:
        """DuoAttention that keeps this part of so many cells on average over heads: as many heads
        keep all cells as the streaming ones, which see SEEN of them, allow."""
        kept = max(k for k in range(self.count) if self._seen(budget, k) >= min(SEEN, budget))
        cells, streaming = self._seen(budget, kept) * longest, 1 - kept / self.count
        sinks, recent = round(SINKS * cells), round((1 - SINKS) * cells)
        return (
            f"duoattention:sinks={sinks},recent={recent},stride=1,"
            f"sparsity={round(100 * streaming)},heads={self.file}"
        )

    def _seen(self, budget: float, kept: int) -> float:
        return (budget * self.count - kept) / (self.count - kept)


def text_of(name: str, budget: float, longest: int, heads: Heads) -> str:
    """A policy that keeps, or lets each token read, this part of so many cells, as a command-line
    option; or one that keeps all, but merges all but this part."""
    cells = round(budget * longest)
    if name == "duoattention":
        return heads.text(budget, longest)
    if name == "minicache":
        return f"{name}:retained={round(100 * budget)},recent=32"
    if name == "quest":
        return f"{name}:budget={cells},dense=0"
    return f"{name}:capacity={cells}" + (f",recent={int(RECENT * cells)}" if name == "h2o" else "")


@dataclass(frozen=True, slots=True)
class Way:
    """A method with its budget, and the engine's options for it."""

    name: str
    budget: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)


TWO_BITS = Way(KIVI.lower(), options={"kv_format": KIVI})


def ways(name: str, budgets: Sequence[float], longest: int, heads: Heads) -> list[Way]:
    """A policy by budget."""
    texts = {budget: text_of(name, budget, longest, heads) for budget in budgets}
    return [Way(name, budget, {"kv_policy": parse_policy(t)}) for budget, t in texts.items()]


def heads_of(path: Path, tokenizer: Tokenizer, effort: Effort, folder: Path, threads: int) -> Heads:
    """Retrieval heads of a model; streaming heads see a twentieth of a text."""
    texts = looked_up(tokenizer, replace(effort, tales=1))
    seen = min(map(len, texts)) // 20
    found = alphas(path, texts, int(SINKS * seen), int((1 - SINKS) * seen), ANSWER, threads)
    write(folder / "heads.tsv", found)
    return Heads(folder / "heads.tsv", found.size)


def measured(asked: Namespace, tell: Tell) -> Generator[list[Measurement], None, None]:
    """Rows of the grammar's own perplexity, then of each way to keep cells."""
    path, effort = resolve(asked.model), QUICK if asked.quick else THOROUGH
    effort = replace(effort, tales=asked.tales or effort.tales)
    if effort.tales < 1:
        raise ValueError(f"--tales is {effort.tales}: want one at least")
    with GGUFFile(path) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
    questions, tales = cases(tokenizer, effort)
    longest = max(len(question.prompt) for question in questions)
    context = longest + max(len(tale.following) for tale in tales)
    base = Measurement(
        BENCH, "", variant=FULL, model=path.name, threads=asked.threads, unit="share",
        settings=f"tokens={longest},tales={effort.tales}",
    )  # fmt: skip
    floor = -sum(tale.log_probability for tale in tales)
    tokens = sum(len(tale.following) for tale in tales)
    yield [figure(base, FLOOR, math.exp(floor / tokens), "perplexity")]
    with TemporaryDirectory() as folder:
        heads = heads_of(path, tokenizer, effort, Path(folder), asked.threads)
        policies = chain(*(ways(name, effort.budgets, longest, heads) for name in POLICIES))
        for way in (Way(FULL), TWO_BITS, *policies):
            tell(f"{path.stem}, {way.name}, {way.budget:.0%}")
            row = replace(base, variant=way.name, shape=f"budget={way.budget:g}")
            options = {"threads": asked.threads, "context": context, **way.options}
            with Engine.load(path, **options) as engine:
                right = [(question.depth, answers(engine, question)) for question in questions]
                costs = [nll for tale in tales for nll in nats(engine, tale)]
            depths = [[found for at, found in right if at == i] for i in range(effort.depths)]
            yield [
                *(
                    figure(
                        row, f"{ANSWERED} {i + 1}/{effort.depths}", float(np.mean(found)), "share"
                    )
                    for i, found in enumerate(depths)
                ),
                figure(row, PERPLEXITY, math.exp(float(np.mean(costs))), "perplexity"),
            ]


def main() -> int:
    parser = ArgumentParser(prog="python -m bench.needle", description=__doc__)
    parser.add_argument(
        "model", nargs="?", default=MODEL, metavar="MODEL",
        help="a GGUF file, or an embedded model, that learned tales (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--tales", type=int, default=0,
        help=f"so many, with {THOROUGH.depths} questions each ({THOROUGH.tales})",
    )  # fmt: skip
    options = common(parser)
    return report(options, section, partial(measured, options))


if __name__ == "__main__":
    sys.exit(main())
