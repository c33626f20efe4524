"""assay fleet conformance: the suite's cases dealt out."""

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from bench.shell.fleet.distribution import bar, opened
from engine.shell.command_line import options as o
from engine.shell.command_line.groups import option

CASES = 40  # of a share


def conformance(
    asked: typer.Context,
    chosen: Annotated[
        list[str] | None, typer.Argument(metavar="PATH", help="Of conformance/; all by default.")
    ] = None,
    *,
    k: str = option("", "Matching tests, like pytest's -k.", "-k", metavar="EXPRESSION"),
    m: str = option("not exhaustive", "Tests with these marks, like pytest's -m.", "-m"),
    out: Path = option(Path("fleet-failures.jsonl"), "Output file of failures.", "-o"),
    as_json: o.Json = False,
) -> None:
    """Distribute the suite's cases; report failures, where, and the command that repeats each.

    The share of a worker that dies is repeated by another. Exit 1 if anything failed.
    """
    from bench.fleet import suite
    from bench.race.results import append_line
    from engine.atomic_write import check

    check(out)
    words = [*(chosen or ["conformance"]), *(["-k", k] if k else []), *(["-m", m] if m else [])]
    tests = suite.cases(words)
    if not tests:
        raise ValueError("no test is of this kind")
    told, failed = Counter[str](), []
    with opened(asked) as machines, bar("tests", len(tests)) as advance:
        for _, found in machines.deal(suite.Suite.of_here(), suite.shares(tests, CASES)):
            advance(len(found))
            told.update(case.outcome for case in found)
            for case in found:
                if case.outcome in ("failed", "error"):
                    failed.append({**asdict(case), "replay": case.replay})
                    append_line(out, failed[-1])
                    if not as_json:
                        print(f"{case.outcome} {case.test}\n  again: {case.replay}", flush=True)
    if as_json:
        print(json.dumps({"tests": len(tests), "outcomes": told, "failures": failed}))
    else:
        counts = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(told.items()))
        print(f"{len(tests):,} tests: {counts}")
    if failed:
        raise typer.Exit(1)
