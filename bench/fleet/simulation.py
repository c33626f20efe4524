"""A fleet that is made up: how much memory its results take, and what a scheduler carries.

    python -m bench.fleet.simulation --machines 1000 --kinds 20 --results 1000000

Machines are made up, and what they say; sealing, checking and merging are the real code.
"""

import argparse
import json
import random
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace

from bench.fleet.about import About
from bench.fleet.matrix import Matrix, states
from bench.fleet.shares import Proved
from bench.fleet.worker import CorruptedError, Sealed
from kernels.certificates import Certificate
from kernels.kernel import Kernel
from kernels.table import KERNELS

REFUSED = 0.01  # share of kernels refused by a kind
FLAKY = 0.001  # share of results in which a machine differs from its kind
DAMAGED = 0.001  # share of corrupt messages


def machines(count: int, kinds: int, seed: int) -> Iterator[Proved]:
    """Endless messages of simulated machines: each kind has the kernels that its features allow,
    and refuses some."""
    chance = random.Random(seed)
    features = sorted({word for kernel in KERNELS for word in kernel.requires})
    able: list[list[Kernel]] = []
    for _ in range(kinds):
        has = {word for word in features if chance.random() < 0.7}
        able.append([kernel for kernel in KERNELS if kernel.requires <= has])
    wrong = [{k.name for k in own if chance.random() < REFUSED} for own in able]
    usual = Certificate("", "0" * 64, "full", 500, 0.4, 1e-15, 5.0, "2026-11-26T00:00:00+00:00")
    usual = replace(usual, code="0" * 64, axes={"tokens": [0, 129], "hidden": [0, 4099]})
    while True:
        for number in range(count):
            kind = number % kinds
            about = About({}, f"kind-{kind:02}", f"CPU {kind}", f"host-{number}", "")
            said = [
                replace(usual, kernel=k.name, failure="beyond its bound" * fails)
                for k in able[kind]
                for fails in [k.name in wrong[kind] or chance.random() < FLAKY]
            ]
            yield Proved(about, tuple(said), states(said))


def simulated(count: int, kinds: int, results: int, seed: int = 0) -> dict[str, float]:
    """Merge at least so many results of a simulated fleet.

    Returns results merged and corrupt messages found, seconds of merging, its peak bytes
    (`peak_tenth` after a tenth of the results: memory is bounded if it has not grown since), bytes
    carried by the scheduler, the largest message's, and cells of the matrix.
    """
    chance, matrix = random.Random(seed + 1), Matrix()
    merged = damaged = carried = largest = peak_tenth = 0
    spent = 0.0
    coming = machines(count, kinds, seed)
    next(coming)  # one-time work of simulating is not the merge's
    tracemalloc.start()
    try:
        for proved in coming:
            sealed = Sealed.of("worker", proved)
            carried, largest = carried + len(sealed.payload), max(largest, len(sealed.payload))
            if chance.random() < DAMAGED:
                sealed = replace(sealed, payload=sealed.payload[:-2] + b"!.")
            begun = time.perf_counter()
            try:
                found = sealed.opened()
            except CorruptedError:
                damaged += 1
                continue
            matrix.add(found.about.machine, found.about.device, found.states)
            spent += time.perf_counter() - begun
            merged += len(found.certificates)
            if not peak_tenth and merged >= results / 10:
                peak_tenth = tracemalloc.get_traced_memory()[1]
            if merged >= results:
                break
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return {
        "machines": count, "kinds": kinds, "results": merged, "damaged": damaged, "seconds": spent,
        "peak_tenth": peak_tenth, "peak": peak, "carried": carried, "largest": largest,
        "cells": len(matrix.counts),
    }  # fmt: skip


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--machines", type=int, default=1000)
    parser.add_argument("--kinds", type=int, default=20)
    parser.add_argument("--results", type=int, default=1_000_000)
    given = parser.parse_args()
    print(json.dumps(simulated(given.machines, given.kinds, given.results), indent=1))


if __name__ == "__main__":
    main()
