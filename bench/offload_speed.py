"""How fast models run that are larger than the memory they may use, beside naive loading, llama.cpp
under the same limit of memory, and what the disk allows.

`python -m bench.offload_speed MODEL ... [-o PAGE.md]` runs each model within a budget of half its
weights' bytes, all ways in turns, then within budgets from a fifth of them to all of them. Of a
sparse model it makes the table of LLM in a flash (arXiv 2312.11514). A budget is of the whole
process; of models smaller than that, such as story-relu, of their weights alone.

It writes a packed copy of each model beside Assay's cache, up to three of a sparse one, and removes
them again; ASSAY_CACHE names another folder. llama.cpp takes part where llama-cpp-python is
installed and a memory cgroup can be made, which takes root as a rule.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.progress import Progress

from bench.conditions import conditions
from bench.offload import page
from bench.offload.contest import Contest
from bench.offload.contests import BUNDLE, OFF, ON, SHARES, curve, dense, paper
from bench.offload.race import Field, Folders, Subject, folders
from bench.offload.way import Way
from bench.report.terminal import show
from bench.results import Results, results_folder
from bench.timing import Rule
from engine.embedded import resolve
from engine.shell.show import stderr, stdout
from kernels.cpu.cores import physical_cores


@dataclass(frozen=True, slots=True)
class Effort:
    """`rule` says how many samples; a sample has so many tokens that count, of a model larger than
    a process and of a smaller one; `shares` are the budgets of a curve."""

    rule: Rule
    large: int
    small: int
    shares: tuple[float, ...]


FULL = Effort(Rule(least=5, most=60, error=0.01, cap_seconds=240), 4, 48, SHARES)
QUICK = Effort(Rule(least=3, most=3), 1, 8, (0.6, 1.0))


def contests(
    path: Path,
    threads: int,
    share: float,
    effort: Effort,
    kept: Folders,
    tell: Callable[[str], None],
) -> Iterator[Contest]:
    """One after the other; `tell` is told which, and how many rounds are done."""
    subject = Subject.of(path, threads, effort.large, effort.small)

    def run(kind: str, ways: Sequence[Way]) -> Contest:
        tell(f"{path.stem}, {kind}: opening")
        with Field(subject, ways, kept) as field:
            outcomes = field.race(effort.rule, lambda n: tell(f"{path.stem}, {kind}: round {n}"))
            return Contest(kind, subject, outcomes, field.notes)

    if not subject.sparse:
        yield run("dense", dense(subject, share))
        yield run("curve dense", curve(subject, effort.shares, OFF))
        return
    bundles = next(w.process for w in paper(subject, share, 0) if w.name == BUNDLE)
    about = kept.pack(subject, bundles)
    neuron = about.neuron if about else 0
    yield run("sparse", paper(subject, share, neuron))
    yield run("curve sparse", curve(subject, effort.shares, ON, neuron))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.offload_speed", description=__doc__)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="a GGUF file, or story-relu")
    parser.add_argument("-o", "--out", type=Path, help="a page in Markdown; plots go beside it")
    parser.add_argument("-t", "--threads", type=int, default=0, help="0: one per physical core")
    parser.add_argument(
        "-b", "--budget", type=float, default=0.5, metavar="SHARE", help="of the weights (0.5)"
    )
    parser.add_argument(
        "-s", "--seconds", type=float, default=240,
        help="a race ends after these (240), once it has 5 samples",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="few samples, to see that it runs")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    options = parser.parse_args()
    about, found = conditions(), list[Contest]()
    rule = replace(FULL.rule, cap_seconds=options.seconds)
    effort = QUICK if options.quick else replace(FULL, rule=rule)
    try:
        if options.out and not options.out.parent.is_dir():
            raise FileNotFoundError(f"{options.out.parent}: no such folder")
        paths = [resolve(model) for model in options.models]
        results = None if options.quick else Results(results_folder(), about)
        with Progress(console=stderr, transient=True) as bar, folders() as kept:
            task = bar.add_task("", total=None)

            def tell(words: str) -> None:
                bar.update(task, description=words)

            for path in paths:
                for contest in contests(
                    path, options.threads or physical_cores(), options.budget, effort, kept,
                    tell,
                ):  # fmt: skip
                    found.append(contest)
                    if results:
                        results.add(*contest.measurements())
        if options.out:
            page.write(found, about, options.out)
    except (ValueError, OSError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps([page.as_dict(contest) for contest in found]))
        return 0
    for contest in found:
        remarks = [page.disks(contest), *page.remarks(contest)]
        show(stdout(), page.title(contest), page.table(contest), remarks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
