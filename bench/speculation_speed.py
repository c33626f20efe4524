"""How much faster a model writes with drafts than without, beside what the formula allows.

`python -m bench.speculation_speed TARGET [--draft MODEL] [-o PAGE.md]` measures what a step of
several tokens costs, what a synthetic drafter of known acceptance and cost gains, a draft model,
prompt lookup where a passage is copied and, of a target with predictors, drafts and skipped neurons
beside each other. Ways take turns; a text with drafts that is not the plain one is an error.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.progress import Progress

from bench.conditions import conditions
from bench.report.terminal import show
from bench.results import Results, results_folder
from bench.speculation import page
from bench.speculation.contest import Synthetic
from bench.speculation.lookup import LOOKUP, lookup
from bench.speculation.page import Part
from bench.speculation.pair import PAIR, pair
from bench.speculation.sparse import SPARSE, sparse, unions
from bench.speculation.synthetic import (
    ALPHAS,
    COSTS,
    CURVE,
    CURVE_ALPHAS,
    CURVE_GAMMA,
    FORMULA,
    GAMMAS,
    drafts,
    synthetic,
)
from bench.speculation.texts import opening
from bench.speculation.verifying import MOST, VERIFY, verifying
from bench.timing import Rule
from engine import Engine, Options
from engine.embedded import resolve
from engine.gguf_file import GGUFFile
from engine.shell.show import stderr, stdout
from kernels.cpu.cores import physical_cores

PARTS = (VERIFY, FORMULA, PAIR, LOOKUP, SPARSE)
CONTEXT = 1024
DEPTH = 32  # tokens of a prompt
SPARSE_DRAFTS = Synthetic(0.8, 4, 0.0, float("nan"))


@dataclass(frozen=True, slots=True)
class Effort:
    """`rule` says how many samples; a sample is a stretch of `length` tokens, behind one of so many
    `prompts` where a draft model guesses; steps of `counts` tokens are verified; `alphas`, `costs`
    and `gammas` are a synthetic drafter's, `curve` the alphas of the curve; so many tokens are
    `read` to count neurons."""

    rule: Rule
    length: int
    prompts: int
    counts: Sequence[int]
    alphas: Sequence[float]
    costs: Sequence[float]
    gammas: Sequence[int]
    curve: Sequence[float]
    read: int


FULL = Effort(
    Rule(least=5, most=400, error=0.005, cap_seconds=120), 64, 8, range(1, MOST + 1), ALPHAS, COSTS,
    GAMMAS, CURVE_ALPHAS, 360,
)  # fmt: skip
QUICK = Effort(
    Rule(least=3, most=3), 12, 2, (1, 3, 5), ALPHAS[-1:], COSTS, GAMMAS[:1], (0.0, 0.5, 1.0), 18
)

Tell = Callable[[str], None]


def measured(
    path: Path, draft: Path | None, threads: int, wanted: Sequence[str], effort: Effort, tell: Tell
) -> Iterator[Part]:
    """One part after the other; `tell` is told which, and how many rounds are done."""
    options = Options(context=CONTEXT, threads=threads)

    def watch(kind: str) -> Callable[[int], None]:
        tell(f"{path.stem}, {kind}: opening")
        return lambda rounds: tell(f"{path.stem}, {kind}: round {rounds}")

    if set(wanted) - {SPARSE}:
        with Engine.load(path, options) as engine:
            yield from _of_engine(engine, draft, wanted, effort, watch)
    if SPARSE in wanted:
        rule, length = effort.rule, effort.length
        yield sparse(path, options, DEPTH, length, SPARSE_DRAFTS, rule, watch(SPARSE))
        tell(f"{path.stem}, {SPARSE}: counting neurons")
        yield unions(path, options, effort.read)


def _of_engine(
    engine: Engine,
    draft: Path | None,
    wanted: Sequence[str],
    effort: Effort,
    watch: Callable[[str], Callable[[int], None]],
) -> Iterator[Part]:
    rule, length = effort.rule, effort.length
    if VERIFY in wanted or FORMULA in wanted:
        text = opening(engine, DEPTH + max(effort.counts))
        cost = verifying(engine, text, DEPTH, effort.counts, rule, watch(VERIFY))
        yield cost
    if FORMULA in wanted:
        prompt = text[:DEPTH]
        every = drafts(effort.alphas, effort.gammas, effort.costs, cost)
        yield synthetic(FORMULA, engine, prompt, length, every, rule, watch(FORMULA))
        along = drafts(effort.curve, [CURVE_GAMMA], [0.0], cost)
        yield synthetic(CURVE, engine, prompt, length, along, rule, watch(CURVE))
    if PAIR in wanted and draft:
        options = replace(engine.model.options.of_a_draft(), batch=MOST)
        with Engine.load(draft, options) as small:
            prompts = [opening(engine, DEPTH // 2, i) for i in range(effort.prompts)]
            yield pair(engine, small, prompts, length, rule, watch(PAIR))
    if LOOKUP in wanted:
        passage = opening(engine, 2 * length + DEPTH)
        yield lookup(engine, passage, length, rule, watch(LOOKUP))


def chosen(path: Path, draft: Path | None, asked: Sequence[str]) -> Sequence[str]:
    """The parts that were asked for, or all that this target and draft model have."""
    if PAIR in asked and not draft:
        raise ValueError(f"the part {PAIR} wants a draft model: --draft MODEL")
    with GGUFFile(path) as file:
        predictors = "blk.0.fc1.weight" in file.tensors
    missing = {PAIR: not draft, SPARSE: not predictors}
    return asked or [part for part in PARTS if not missing.get(part)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.speculation_speed", description=__doc__)
    parser.add_argument("target", metavar="TARGET", help="a GGUF file, or an embedded model")
    parser.add_argument("--draft", metavar="MODEL", help="a draft model for it")
    parser.add_argument(
        "--part", action="append", choices=PARTS, default=[],
        help=f"this part alone, may repeat (all; {FORMULA} has {VERIFY} with it)",
    )  # fmt: skip
    parser.add_argument("-o", "--out", type=Path, help="a page in Markdown; plots go beside it")
    parser.add_argument("-t", "--threads", type=int, default=0, help="0: one per physical core")
    parser.add_argument(
        "-s", "--seconds", type=float, default=FULL.rule.cap_seconds,
        help="a race ends after these (120), once it has 5 samples",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="few samples, to see that it runs")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    options = parser.parse_args()
    about, found = conditions(), list[Part]()
    rule = replace(FULL.rule, cap_seconds=options.seconds)
    effort = QUICK if options.quick else replace(FULL, rule=rule)
    try:
        if options.out and not options.out.parent.is_dir():
            raise FileNotFoundError(f"{options.out.parent}: no such folder")
        path = resolve(options.target)
        draft = resolve(options.draft) if options.draft else None
        wanted = chosen(path, draft, options.part)
        results = None if options.quick else Results(results_folder(), about)
        with Progress(console=stderr, transient=True) as bar:
            task = bar.add_task("", total=None)

            def tell(words: str) -> None:
                bar.update(task, description=words)

            threads = options.threads or physical_cores()
            for part in measured(path, draft, threads, wanted, effort, tell):
                found.append(part)
                if results:
                    results.add(*part.measurements())
        if options.out:
            page.write(found, about, options.out)
    except (ValueError, OSError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps([page.as_dict(part) for part in found]))
        return 0
    for part in found:
        show(stdout(), page.title(part), page.table(part), page.remarks(part))
    return 0


if __name__ == "__main__":
    sys.exit(main())
