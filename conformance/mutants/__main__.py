"""`python -m conformance.mutants`: the share of mutants of the kernels that their trials kill."""

import argparse
import json
import sys
import time
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from conformance.mutants.equivalent import reason_of, unseen
from conformance.mutants.hunt import Outcome, hunt


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m conformance.mutants", description=__doc__)
    parser.add_argument("words", nargs="*", help="of files whose names hold one of these words")
    parser.add_argument("--count", type=int, default=100, help="mutants to try (default 100)")
    parser.add_argument("--seed", type=int, default=0, help="which ones (default 0)")
    parser.add_argument("--workers", type=int, default=2, help="at once (default 2)")
    parser.add_argument("--json", action="store_true", help="print a JSON line for each")
    options = parser.parse_args()

    started, outcomes = time.monotonic(), list[Outcome]()
    trials = hunt(options.count, options.seed, options.workers, options.words)
    try:
        for outcome in trials:
            outcomes.append(outcome)
            if options.json:
                print(json.dumps(asdict(outcome)), flush=True)
            else:
                _say(outcome, len(outcomes), options.count, time.monotonic() - started)
    except KeyboardInterrupt:
        print(f"stopped: {len(outcomes)} of {options.count} were tried", file=sys.stderr)
    finally:
        trials.close()
    if not options.json:
        _sum_up(outcomes)


def _say(outcome: Outcome, number: int, count: int, seconds: float) -> None:
    killed = f"{outcome.stage}: {outcome.kernel}" if outcome.killed else "SURVIVED"
    left = seconds / number * (count - number) / 60
    print(f"{number:4}/{count} {outcome.seconds:5.1f} s, {left:.0f} min left  {killed}")
    print(f"       {outcome.mutant}", flush=True)


def _sum_up(outcomes: list[Outcome]) -> None:
    table = Table("file", "tried", "killed", "equivalent", title="Mutants of the kernels")
    survivors = {o.mutant: _why_the_same(o) for o in outcomes if not o.killed}
    for file in [*sorted({o.mutant.file for o in outcomes}), ""]:
        own = [o for o in outcomes if o.mutant.file.startswith(file)]
        same = sum(bool(survivors.get(o.mutant)) for o in own)
        table.add_row(file or "all", str(len(own)), str(sum(o.killed for o in own)), str(same))
    console = Console()
    console.print(table)
    for mutant, same in survivors.items():
        told = f"equivalent: {same}" if same else unseen(mutant) or "?"
        print(f"survived: {mutant}\n          {told}")
    others = len(outcomes) - sum(map(bool, survivors.values()))
    if others:
        killed = len(outcomes) - len(survivors)
        share = f"{killed / others:.1%}"
        print(f"killed: {killed} of {others} that are not shown equivalent, {share}")


def _why_the_same(outcome: Outcome) -> str:
    """Why no trial can kill a survivor; "" if that is not known."""
    return "every kernel runs as before" if outcome.same else reason_of(outcome.mutant)


if __name__ == "__main__":
    main()
