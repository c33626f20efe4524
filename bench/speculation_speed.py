"""How much faster a model writes with drafts than without, beside what the formula allows.

`python -m bench.speculation_speed TARGET [--draft MODEL] [-o PAGE.md]` measures what a step of
several tokens costs, what a synthetic drafter of known acceptance and cost gains, a draft model,
prompt lookup where a passage is copied and, of a target with predictors, drafts and skipped neurons
beside each other. Ways take turns; a text with drafts that is not the plain one is an error.
"""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

from bench.race.experiment import Racing, Rule
from bench.race.program import Tell, parsed, report
from bench.race.results import Measurement
from bench.report.speculation import section
from bench.speculation import races
from bench.speculation.races import Synthetic
from bench.speculation.writer import opening
from engine import Engine, Options
from engine.embedded import resolve
from engine.gguf.file import GGUFFile

PARTS = (races.VERIFY, races.FORMULA, races.PAIR, races.LOOKUP, races.SPARSE)
CONTEXT = 1024
DEPTH = 32  # tokens of a prompt
SPARSE_DRAFTS = Synthetic(0.8, 4, 0.0)


@dataclass(frozen=True, slots=True)
class Effort:
    """A sample is a stretch of `length` tokens, after one of so many `prompts` where a draft model
    guesses; steps of `counts` tokens are verified; `alphas`, `costs` and `gammas` are a synthetic
    drafter's, `curve` the alphas of the curve; so many tokens are `read` to count neurons."""

    length: int
    prompts: int
    counts: Sequence[int]
    alphas: Sequence[float]
    costs: Sequence[float]
    gammas: Sequence[int]
    curve: Sequence[float]
    read: int


RULE, QUICKLY = Rule(least=5, most=400, error=0.005, cap_seconds=120), Rule(least=3, most=3)
ALPHAS, COSTS, GAMMAS = (0.6, 0.8, 0.9), (0.0, 0.1), (2, 4, 8)
CURVE_ALPHAS, CURVE_GAMMA = tuple(i / 10 for i in range(11)), 4
MOST = 17  # tokens of a step: llama.cpp's longest draft and the one before it
FULL = Effort(64, 8, range(1, MOST + 1), ALPHAS, COSTS, GAMMAS, CURVE_ALPHAS, 360)
QUICK = Effort(12, 2, (1, 3, 5), ALPHAS[-1:], COSTS, GAMMAS[:1], (0.0, 0.5, 1.0), 18)


def measured(asked: Namespace, tell: Tell) -> Generator[list[Measurement], None, None]:
    """Rows, one part after the other; `tell` receives the part, and how many rounds are done."""
    path = resolve(asked.target)
    draft = resolve(asked.draft) if asked.draft else None
    wanted, effort = chosen(path, draft, asked.part), QUICK if asked.quick else FULL
    options = Options(context=CONTEXT, threads=asked.threads)
    racing = Racing(asked.rule, tell, path.stem)
    if set(wanted) - {races.SPARSE}:
        with Engine.load(path, options) as engine:
            yield from _of_engine(racing, engine, draft, wanted, effort)
    if races.SPARSE in wanted:
        racing.say(races.SPARSE)
        yield races.sparse(racing, path, options, DEPTH, effort.length, SPARSE_DRAFTS)
        racing.say(races.SPARSE, "counting neurons")
        yield list(races.unions(path, options, effort.read))


def _of_engine(
    racing: Racing, engine: Engine, draft: Path | None, wanted: Sequence[str], effort: Effort
) -> Iterator[list[Measurement]]:
    length = effort.length
    if races.VERIFY in wanted or races.FORMULA in wanted:
        text = opening(engine, DEPTH + max(effort.counts))
        yield races.verifying(racing, engine, text, DEPTH, effort.counts)
    if races.FORMULA in wanted:
        kinds = product(effort.alphas, effort.costs, effort.gammas)
        every = [Synthetic(alpha, gamma, c) for alpha, c, gamma in kinds]
        along = [Synthetic(alpha, CURVE_GAMMA, 0.0) for alpha in effort.curve]
        for kind, drafts in ((races.FORMULA, every), (races.CURVE, along)):
            yield races.synthetic(racing, kind, engine, text[:DEPTH], length, drafts)
    if races.PAIR in wanted and draft:
        options = replace(engine.model.options.for_draft_model(), batch=MOST)
        with Engine.load(draft, options) as small:
            prompts = [opening(engine, DEPTH // 2, i) for i in range(effort.prompts)]
            yield races.pair(racing, engine, small, prompts, length)
    if races.LOOKUP in wanted:
        passage = opening(engine, 2 * length + DEPTH)
        yield races.lookup(racing, engine, passage, length)


def chosen(path: Path, draft: Path | None, asked: Sequence[str]) -> Sequence[str]:
    """The requested parts, or all that this target and draft model have."""
    if races.PAIR in asked and not draft:
        raise ValueError(f"the part {races.PAIR} wants a draft model: --draft MODEL")
    with GGUFFile(path) as file:
        predictors = "blk.0.fc1.weight" in file.tensors
    missing = {races.PAIR: not draft, races.SPARSE: not predictors}
    return asked or [part for part in PARTS if not missing.get(part)]


def main() -> int:
    parser = ArgumentParser(prog="python -m bench.speculation_speed", description=__doc__)
    parser.add_argument("target", metavar="TARGET", help="a GGUF file, or an embedded model")
    parser.add_argument("--draft", metavar="MODEL", help="a draft model for it")
    parser.add_argument(
        "--part", action="append", choices=PARTS, default=[],
        help=f"this part alone, may repeat (all; {races.FORMULA} has {races.VERIFY} with it)",
    )  # fmt: skip
    options = parsed(parser, RULE, QUICKLY)
    return report(options, section, partial(measured, options))


if __name__ == "__main__":
    sys.exit(main())
