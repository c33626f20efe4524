"""Drafts for a target that skips neurons, beside each by itself; and how many neurons the tokens of
a step need together."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from bench.results import Measurement
from bench.speculation.contest import BENCH, Contest, Synthetic, Way, contest
from bench.speculation.replay import Replay
from bench.speculation.texts import Held, opening
from bench.speculation.writer import GREEDY, Writer, chains
from bench.timing import Rule
from engine import Engine, Options

SPARSE, UNION = "sparse", "union"
DENSE, SKIPPING, DRAFTS = "dense", "sparse", "dense, drafts"
EACH, TOGETHER = "sparse, drafts, a mask a token", "sparse, drafts, one mask"
BATCHES = (1, 2, 3, 5, 9)


def sparse(
    path: Path,
    options: Options,
    depth: int,
    length: int,
    drafts: Synthetic,
    rule: Rule,
    watch: Callable[[int], None],
) -> Contest:
    """All ways write one text behind its first `depth` tokens, and are held to it, since skipping
    neurons by other masks would lead to other texts. The model is loaded three times."""
    with ExitStack() as stack:

        def load(sparse: str, union: bool = False) -> Engine:
            wanted = replace(options, sparse=sparse, union=union)
            return stack.enter_context(Engine.load(path, wanted))

        dense, each = load("off"), load("on")
        union = load("on", union=True)
        text = opening(dense, depth + length + 2 * (1 + drafts.gamma))
        prompt, rest = text[:depth], text[depth:]
        params = replace(GREEDY, logits_processors=[Held(text)])

        def way(engine: Engine, drafting: bool) -> Way:
            writer = Writer(engine, [prompt], params, length, expected=[rest])
            if drafting:
                replay = Replay(
                    text, engine.model.config.vocab, drafts.alpha, writer.steps_of(drafts.c)
                )
                writer.speculation = chains(engine, replay, drafts.gamma)
            return Way(writer, "" if engine is dense and not drafting else DENSE)

        ways = {
            DENSE: way(dense, drafting=False),
            SKIPPING: way(each, drafting=False),
            DRAFTS: way(dense, drafting=True),
            EACH: way(each, drafting=True),
            TOGETHER: way(union, drafting=True),
        }
        return contest(SPARSE, dense.model, ways, rule, watch, [drafts.name])


@dataclass(frozen=True, slots=True)
class Union:
    """Of steps of `tokens` tokens the share of all neurons that any of them needs, on average; what
    it were if tokens needed neurons independently of each other, each neuron as often as it is
    needed (`independent`) or all of them alike (`alike`, 1 - (1 - s)^k)."""

    tokens: int
    share: float
    independent: float
    alike: float


@dataclass(frozen=True, slots=True)
class Unions:
    """Of steps of different lengths over one text."""

    kind: ClassVar[str] = UNION
    model: str
    threads: int
    found: Sequence[Union]

    def measurements(self) -> Iterator[Measurement]:
        for each in self.found:
            yield Measurement(
                BENCH, f"union of {each.tokens}", shape=UNION, model=self.model,
                threads=self.threads, samples=(each.share,), unit="share",
            )  # fmt: skip


def unions(path: Path, options: Options, count: int) -> Unions:
    """Over a text of so many tokens, read in steps of one, of two and so on."""
    options = replace(options, sparse="on", union=True, count_neurons=True)
    with Engine.load(path, options) as engine:
        model, text = engine.model, opening(engine, count)
        alone = _counts(engine, text, 1) / len(text)
        found = []
        for tokens in BATCHES:
            read = len(text) // tokens * tokens
            share = _counts(engine, text[:read], tokens).mean() / read
            independent = (1 - (1 - alone) ** tokens).mean()
            alike = 1 - (1 - alone.mean()) ** tokens
            found.append(Union(tokens, float(share), float(independent), float(alike)))
        return Unions(model.file.path.name, model.team.n_threads, found)


def _counts(
    engine: Engine, text: Sequence[int], tokens: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """For how many tokens each neuron of all blocks was active."""
    model = engine.model
    engine.reset()
    for counted in model.counted.values():
        counted.clear()
    for first in range(0, len(text), tokens):
        part = text[first : first + tokens]
        model.step(part, range(first, first + len(part)), [(0,)] * len(part))
    engine.reset()
    return np.concatenate([counted.predicted for counted in model.counted.values()])
