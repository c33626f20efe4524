"""`python -m conformance.bugs`: which stage rejects each planted bug, and after how many seconds;
results of a full run are stored for `assay report`."""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from conformance.bugs.laws import breaker
from conformance.bugs.table import EVERY, PLANTED
from conformance.bugs.trial import outcomes
from kernels.planted import Planted, keep_planted
from reference.table import OPS


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m conformance.bugs", description=__doc__)
    parser.add_argument("words", nargs="*", help="try those whose name holds one of these words")
    parser.add_argument("--null", action="store_true", help="with those that do not compute")
    parser.add_argument("--workers", type=int, default=2, help="at once (default 2)")
    parser.add_argument("--json", action="store_true", help="print a JSON line for each")
    parser.add_argument("--laws", action="store_true", help="which bugs break each law of an op")
    options = parser.parse_args()
    if options.laws:
        sys.exit(_laws(options.words))

    bugs = [
        bug
        for bug in (EVERY if options.null else PLANTED)
        if not options.words or any(word in str(bug) for word in options.words)
    ]
    stages, rows = Counter[str](), list[Planted]()
    try:
        for count, outcome in enumerate(outcomes(bugs, options.workers), 1):
            stages[outcome.stage or "survived"] += 1
            rows.append(outcome.row)
            if options.json:
                print(json.dumps(asdict(outcome.row)), flush=True)
                continue
            told = f"{outcome.seconds:6.2f} s  {outcome.stage or 'SURVIVED':12} {outcome.bug}"
            why = outcome.failure or f"in the variant {outcome.bug.variant}"
            print(f"{count:4}/{len(bugs)} {told}  {why[:120]}", flush=True)
        if not options.words and len(rows) == len(bugs):
            keep_planted(sorted(rows, key=lambda row: (row.op, row.bug)))
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    print(", ".join(f"{stage}: {n}" for stage, n in stages.items()), file=sys.stderr)
    sys.exit(1 if stages["survived"] else 0)


def _laws(words: Sequence[str]) -> int:
    """Find a bug for each law of ops whose names contain one of these words; 1 if one has none."""
    idle = 0
    for op in OPS.values():
        for law in op.laws if any(word in op.name for word in words or ("",)) else ():
            bug = breaker(op, law)
            idle += bug is None
            print(f"{op.name:24} {law.name:40} {bug or 'NO BUG'}", flush=True)
    return 1 if idle else 0


if __name__ == "__main__":
    main()
