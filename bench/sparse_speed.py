"""How fast a sparse model decodes by how many of its neurons are active, beside the same weights
run dense and beside what the bytes allow.

`python -m bench.sparse_speed MODEL [--dense OTHER] [-o CURVE.svg]` moves the threshold so that
these shares of the neurons are active, and prints a table: steps of one token, sparse and dense in
turns. Dense is the same file without its predictors, or another of the same shape whose down is not
transposed: that is what a dense model would be.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from rich.progress import Progress
from rich.table import Table

from bench.ratio import Ratio, ratio
from bench.timing import Rule, Sampler, race
from engine.gguf_file import GGUFFile
from engine.model import Model
from engine.options import Options
from engine.shell.show import stderr, stdout
from engine.sparsity import pays

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
TOKENS = 16  # by which shares are found
DEPTH = 32  # tokens in the cache
RULE = Rule(least=15, most=60, error=0.01, cap_seconds=12)


@dataclass(frozen=True, slots=True)
class Point:
    """At a share of `active` neurons, of which the share `firing` has an open gate: how many times
    as fast as dense the steps are, and how many times the bytes would allow. `pays` says what an
    engine left to itself does: skip neurons, or run dense."""

    active: float
    firing: float
    seconds: float
    faster: Ratio
    allowed: float
    pays: bool


@dataclass(frozen=True, slots=True)
class Bytes:
    """Of weights that a token's step reads: those that it always reads, predictors, and all of the
    neurons' gates, and ups and downs."""

    always: int
    predictors: int
    gates: int
    rest: int

    @classmethod
    def of(cls, file: GGUFFile) -> "Bytes":
        found = {"always": 0, "predictors": 0, "gates": 0, "rest": 0}
        for name, info in file.tensors.items():
            what = name.split(".")[-2]
            if what == "token_embd" and "output.weight" in file.tensors:
                continue
            kinds = {"fc1": "predictors", "fc2": "predictors", "ffn_gate": "gates"}
            kinds |= {"ffn_up": "rest", "ffn_down_t": "rest"}
            found[kinds.get(what, "always")] += info.n_bytes
        return cls(**found)

    def allowed(self, active: float, firing: float) -> float:
        """How many times as fast a step could be if bytes were all."""
        dense = self.always + self.gates + self.rest
        sparse = self.always + self.predictors + active * self.gates + firing * self.rest
        return dense / sparse


def decoding(model: Model) -> Sampler:
    """A step of one token, forgotten again."""
    token = 0

    def step() -> float:
        nonlocal token
        token = (token * 7919 + 17) % model.config.vocab
        started = time.perf_counter()
        model.evaluate([token], DEPTH)
        taken = time.perf_counter() - started
        model.cells.remove(0, DEPTH)
        return taken

    return step


def shares_of(model: Model, threshold: float) -> tuple[float, float]:
    """The mean share of active neurons at a threshold, and of those that fire."""
    for counted in model.counted.values():
        counted.clear()
    model.set_threshold(threshold)
    tokens = np.random.default_rng(1).integers(0, model.config.vocab, TOKENS)
    model.evaluate([int(token) for token in tokens], 0)
    model.cells.clear()
    found = list(model.counted.values())
    hits = [float(c.hits.sum()) / (TOKENS * len(c.hits)) for c in found]
    return float(np.mean([c.active_share(TOKENS) for c in found])), float(np.mean(hits))


def threshold_for(model: Model, share: float) -> tuple[float, float, float]:
    """A threshold at which about this share is active, and the shares that are active and fire."""
    low, high = -1.0, 1.0
    while shares_of(model, low)[0] < min(share, 0.999) and low > -1e6:
        low *= 4
    while shares_of(model, high)[0] > share and high < 1e6:
        high *= 4
    for _ in range(14):
        middle = (low + high) / 2
        active, firing = shares_of(model, middle)
        if abs(active / share - 1) < 0.02:
            return middle, active, firing
        low, high = (middle, high) if active > share else (low, middle)
    return low, *shares_of(model, low)


def curve(path: Path, dense_path: Path, shares: Sequence[float], threads: int) -> Iterator[Point]:
    """A point for each share; the model is loaded to count its neurons, then to be timed."""
    options = partial(Options, context=256, threads=threads)
    counting = Model(path, options(sparse="on", count_neurons=True, batch=TOKENS))
    try:
        wanted = [threshold_for(counting, share) for share in shares]
    finally:
        counting.close()
    dense = Model(dense_path, options(sparse="off"))
    sparse = Model(path, options(sparse="on"))
    sizes = Bytes.of(sparse.file)
    try:
        for model in (dense, sparse):
            model.evaluate(list(range(5, 5 + DEPTH)), 0)
        steps = {"sparse": decoding(sparse), "dense": decoding(dense)}
        for threshold, active, firing in wanted:
            sparse.set_threshold(threshold)
            samples = race(steps, RULE)
            yield Point(
                active,
                firing,
                float(np.median(samples["sparse"])),
                ratio(samples["dense"], samples["sparse"], together=3),
                sizes.allowed(active, firing),
                pays(sparse.file, 0, active),
            )
    finally:
        dense.close()
        sparse.close()


def table(points: Sequence[Point]) -> Table:
    found = Table(box=None)
    for name in (
        "active",
        "fire",
        "ms a token",
        "times dense",
        "spread",
        "bytes allow",
        "reached",
        "by itself",
    ):
        found.add_column(name, justify="right")
    for p in points:
        found.add_row(
            f"{p.active:.1%}",
            f"{p.firing:.1%}",
            f"{1e3 * p.seconds:.2f}",
            f"{p.faster.value:.2f}",
            f"{p.faster.low:.2f} to {p.faster.high:.2f}",
            f"{p.allowed:.2f}",
            f"{p.faster.value / p.allowed:.0%}",
            "sparse" if p.pays else "dense",
        )
    return found


def drawing(points: Sequence[Point], name: str) -> Figure:
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    active = [100 * p.active for p in points]
    low = [p.faster.value - p.faster.low for p in points]
    high = [p.faster.high - p.faster.value for p in points]
    axes.errorbar(
        active, [p.faster.value for p in points], yerr=(low, high), marker="o", label="measured"
    )
    axes.plot(active, [p.allowed for p in points], "--", label="what the bytes allow")
    axes.axhline(1, color="grey", linewidth=1, label="dense")
    axes.set(
        xscale="log",
        xlabel="active neurons, %",
        ylabel="decode, times dense",
        title=f"Skipping neurons: {name}",
        ylim=(0, None),
    )
    axes.legend()
    return figure


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.sparse_speed", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--dense", type=Path, help="what to compare with (MODEL, run dense)")
    parser.add_argument("-o", "--out", type=Path, help="an .svg or .png of the curve")
    parser.add_argument(
        "-t", "--threads", type=int, default=0, help="0: one per core that it may use"
    )
    options = parser.parse_args()
    points = []
    try:
        with Progress(console=stderr, transient=True) as bar:
            task = bar.add_task("racing sparse and dense", total=len(SHARES))
            for point in curve(
                options.model, options.dense or options.model, SHARES, options.threads
            ):
                points.append(point)
                bar.advance(task)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    stdout().print(table(points))
    if options.out:
        drawing(points, options.model.stem).savefig(options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
