"""`python -m conformance.mutants`: how many small changes of the kernels their trials notice."""

import argparse
import json
import sys
from dataclasses import asdict

from rich.console import Console
from rich.progress import track
from rich.table import Table

from conformance.mutants.hunt import all_mutants, hunt


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m conformance.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="mutants to try (default 100)")
    parser.add_argument("--seed", type=int, default=0, help="which ones (default 0)")
    parser.add_argument("--workers", type=int, default=2, help="at once (default 2)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()

    tried = hunt(options.count, options.seed, options.workers)
    progress = Console(stderr=True)
    outcomes = list(track(tried, "mutants", total=options.count, console=progress))
    killed = [o for o in outcomes if o.killed]
    survivors = [o.mutant for o in outcomes if not o.killed]
    if options.json:
        report = {
            "of": len(all_mutants()),
            "seed": options.seed,
            "tried": len(outcomes),
            "killed": len(killed),
            "outcomes": [{**asdict(o.mutant), "killed": o.killed} for o in outcomes],
        }
        json.dump(report, sys.stdout, indent=1)
        sys.stdout.write("\n")
        return
    table = Table("file", "tried", "killed", title="Mutants of the kernels")
    for file in sorted({o.mutant.file for o in outcomes}):
        own = [o for o in outcomes if o.mutant.file == file]
        table.add_row(file, str(len(own)), str(sum(bool(o.killed) for o in own)))
    table.add_row("all", str(len(outcomes)), str(len(killed)), style="bold")
    console = Console()
    console.print(table)
    for mutant in survivors:
        console.print(f"survived: {mutant}", highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
