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

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.offload import way as ways
from bench.offload.race import Field, Folders, Subject, folders
from bench.offload.way import Way
from bench.race.experiment import Racing, Rule
from bench.race.program import Tell, parsed, report
from bench.race.results import Measurement
from bench.report.offload import section
from engine.embedded import resolve

FULL, QUICK = Rule(least=5, most=60, error=0.01, cap_seconds=240), Rule(least=3, most=3)


def races(path: Path, options: Namespace, kept: Folders, tell: Tell) -> Iterator[list[Measurement]]:
    """One race after the other; `tell` receives its name, and how many rounds are done."""
    racing = Racing(options.rule, tell, path.stem)
    # counted tokens of a sample, for a model larger than a process and for a smaller one
    large, small = (1, 8) if options.quick else (4, 48)
    shares = (0.6, 1.0) if options.quick else ways.SHARES  # the budgets of a curve
    subject, share = Subject.of(path, options.threads, large, small), options.budget
    weights = subject.weights

    def run(kind: str, chosen: Sequence[Way]) -> list[Measurement]:
        racing.say(kind)
        with ExitStack() as stack:
            field = Field(subject, chosen, kept, kind, stack)
            for note in field.notes:
                racing.say(kind, note)
            return field.race(racing)

    if not subject.sparse:
        yield run("dense", ways.dense(weights, share, limited=not subject.alone))
        yield run(f"{ways.CURVE} dense", ways.curve(weights, shares, ways.OFF))
        return
    bundles = next(w.process for w in ways.paper(weights, share, 0) if w.name == ways.BUNDLE)
    about = kept.pack(subject, bundles)
    neuron = about.neuron if about else 0
    yield run("sparse", ways.paper(weights, share, neuron))
    yield run(f"{ways.CURVE} sparse", ways.curve(weights, shares, ways.ON, neuron))


def main() -> int:
    parser = ArgumentParser(prog="python -m bench.offload_speed", description=__doc__)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="a GGUF file, or story-relu")
    parser.add_argument(
        "-b", "--budget", type=float, default=0.5, metavar="SHARE", help="of the weights (0.5)"
    )
    options = parsed(parser, FULL, QUICK)

    def measured(tell: Tell) -> Generator[list[Measurement], None, None]:
        paths = [resolve(model) for model in options.models]
        with folders() as kept:
            for path in paths:
                yield from races(path, options, kept, tell)

    return report(options, section, measured)


if __name__ == "__main__":
    sys.exit(main())
