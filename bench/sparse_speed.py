"""How fast a sparse model decodes by how many of its neurons are active, beside the same weights
run dense and beside what the bytes allow.

`python -m bench.sparse_speed MODEL [--dense OTHER] [--powerinfer PROGRAM] [-o PAGE.md]` moves the
threshold so that these shares of the neurons are active, and prints a table: steps of one token,
sparse and dense in turns, and those that PowerInfer's program (its `main`) tells of at the same
threshold. Dense is the same file without its predictors, or another of the same shape whose down is
not transposed: that is what a dense model would be.
"""

import argparse
import re
import sys
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bench.child import ChildError, output
from bench.engine.profile import timed_step
from bench.race.experiment import Contender, Experiment, Rule, Sample, Sampler, timed
from bench.race.program import Tell, parsed, report
from bench.race.ratio import ratio
from bench.race.results import Measurement
from bench.report.cells import number, percent, text
from bench.report.lookup import absences, sizes, times
from bench.report.plots import panels
from bench.report.table import Section, table
from engine.gguf.file import GGUFFile
from engine.model import Model
from engine.options import Options
from engine.passes.count import count_neurons, neuron_counts
from engine.sparsity import is_sparse_faster as faster

BENCH = "sparse speed"
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
TOKENS = 16  # tokens by which shares are found
DEPTH = 32  # tokens in the cache
RULE = Rule(least=15, most=60, error=0.01, cap_seconds=12)
QUICK = Rule(least=3, most=3)
TOGETHER = 3  # rounds that are resampled together
SPARSE, DENSE, POWERINFER = "sparse", "dense", "PowerInfer"
TOLD = re.compile(r" eval time = +([\d.]+) ms / +(\d+) runs")  # printed by PowerInfer at its end
LEAD = (
    "Steps of one token, in turns, at thresholds by which these shares of the neurons are active."
    " PowerInfer's program loads the model for each sample and tells what its own steps took."
    " Bytes allow so much if they were all that takes time. The last column is what an engine left"
    " to itself does: skip neurons, or run dense."
)


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes of weights in a token's step: those always read, predictors, all neurons' gates, and
    ups and downs."""

    always: int
    predictors: int
    gates: int
    rest: int

    @classmethod
    def of(cls, file: GGUFFile) -> "Bytes":
        found = {"always": 0, "predictors": 0, "gates": 0, "rest": 0}
        kinds = {"fc1": "predictors", "fc2": "predictors", "ffn_gate": "gates", "ffn_up": "rest"}
        kinds |= {"ffn_down_t": "rest"}
        for name, info in file.tensors.items():
            what = name.split(".")[-2]
            if what != "token_embd" or "output.weight" not in file.tensors:
                found[kinds.get(what, "always")] += info.n_bytes
        return cls(**found)

    @property
    def dense(self) -> int:
        return self.always + self.gates + self.rest

    def sparse(self, active: float, firing: float) -> float:
        """Bytes with these shares of active neurons and of open gates."""
        return self.always + self.predictors + active * self.gates + firing * self.rest


def decoding(model: Model) -> Sampler:
    """A step of one token, undone afterwards; another token each time."""
    tokens = np.random.default_rng(2)
    return lambda: timed_step(model, [int(tokens.integers(model.config.vocab))], DEPTH)


def shares_of(model: Model, threshold: float) -> tuple[float, float]:
    """The mean shares of active and of firing neurons at a threshold."""
    for counted in neuron_counts(model.memory).values():
        counted.clear()
    model.set_threshold(threshold)
    tokens = np.random.default_rng(1).integers(0, model.config.vocab, TOKENS)
    model.evaluate([int(token) for token in tokens], 0)
    model.cells.clear()
    found = list(neuron_counts(model.memory).values())
    hits = [float(c.hits.sum()) / (TOKENS * len(c.hits)) for c in found]
    return float(np.mean([c.active_share(TOKENS) for c in found])), float(np.mean(hits))


def threshold_for(model: Model, share: float) -> tuple[float, float, float]:
    """A threshold at which about this share is active, with the shares that are active and fire."""
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


def powerinfer(program: str, model: Path, threads: int, threshold: float) -> Sample:
    """Seconds of PowerInfer's step, the mean over some after a short prompt, as its program
    reports."""
    options = {
        "-m": model, "-p": "a", "-n": DEPTH, "-c": 256, "-t": threads, "--temp": 0,
        "--log-disable": None,
    }  # fmt: skip
    env = {"LLAMA_SPARSE_PRED_THRESHOLD": f"{threshold:.9g}"}
    told = TOLD.search(output(program, options, env)[1])
    if not told:
        raise ChildError(f"{program} does not tell the time of its steps")
    return Sample(float(told[1]) / float(told[2]) / 1e3)


def curve(
    path: Path,
    dense_path: Path,
    shares: Sequence[float],
    threads: int,
    rule: Rule = RULE,
    tell: Tell = print,
    program: str = "",
) -> Iterator[list[Measurement]]:
    """Rows for each share; the model is loaded once to count its neurons, then to be timed."""
    options = partial(Options, context=256, threads=threads)
    counting = Model(path, options(sparse="on", passes=(count_neurons,), batch=TOKENS))
    try:
        wanted = []
        for share in shares:
            tell(f"{path.stem}: a threshold for {share:.0%}")
            wanted.append(threshold_for(counting, share))
    finally:
        counting.close()
    dense = Model(dense_path, options(sparse="off"))
    sparse = Model(path, options(sparse="on"))
    read = Bytes.of(sparse.file)
    try:
        for model in (dense, sparse):
            model.evaluate(list(range(5, 5 + DEPTH)), 0)
        for threshold, active, firing in wanted:
            tell(f"{path.stem}: {active:.1%} active")
            sparse.set_threshold(threshold)
            row = Measurement(
                BENCH, SPARSE, model=path.name, threads=sparse.team.n_threads, tokens=1,
                shape=f"active={round(1e6 * active)},firing={round(1e6 * firing)}",
                settings=f"by itself={SPARSE if faster(sparse.file, 0, active) else DENSE}",
                bytes=read.sparse(active, firing),
            )  # fmt: skip
            full = replace(row, test=DENSE, bytes=float(read.dense))
            theirs = partial(powerinfer, program, path, row.threads, threshold)
            yield Experiment({
                SPARSE: Contender(row, timed(decoding(sparse))),
                DENSE: Contender(full, timed(decoding(dense))),
                POWERINFER: Contender(
                    replace(row, test=POWERINFER, contender=POWERINFER, bytes=0.0),
                    theirs,
                    excused=ChildError,
                    absent="" if program else "it is not named: --powerinfer PROGRAM",
                ),
            }).run(rule)  # fmt: skip
    finally:
        dense.close()
        sparse.close()


def section(rows: pd.DataFrame) -> Section:
    """A row for each share, and their curve; shares are stored in millionths of all neurons."""
    points = []
    for _, race in rows[rows["bench"] == BENCH].groupby("rivals", sort=False):
        ways = {way.test: way for way in race.itertuples()}
        sparse, dense, theirs = ways[SPARSE], ways[DENSE], ways.get(POWERINFER)
        shares = {name: size / 1e6 for name, size in sizes(sparse.shape).items()}
        faster = ratio(dense.samples, sparse.samples, together=TOGETHER)
        itself = sparse.settings.partition("=")[2]
        facts = {"ms": 1e3 * sparse.median, "faster": faster, "itself": itself, "theirs": None}
        if theirs is not None and theirs.samples:
            facts["theirs"] = ratio(theirs.samples, sparse.samples, together=TOGETHER)
        points.append(shares | facts | {"allowed": dense.bytes / sparse.bytes})
    name = rows["model"].iloc[0]
    made = table(
        "sparse-speed",
        name,
        points,
        {
            "Active": lambda p: percent(p["active"]),
            "Fire": lambda p: percent(p["firing"]),
            "ms a token": lambda p: number(p["ms"]),
            "Times dense": lambda p: times(p["faster"]),
            "Times PowerInfer": lambda p: times(p["theirs"]),
            "Bytes allow": lambda p: number(p["allowed"]),
            "Reached": lambda p: percent(p["faster"].value / p["allowed"]),
            "By itself": lambda p: text(p["itself"]),
        },
        top=0,
    ).with_what_there_is()
    marks = list[dict[str, Any]]()
    for p in points:
        at = {"title": "decode, times dense", "x": 100 * p["active"]}
        marks.append({"name": "measured", **at, **asdict(p["faster"])})
        marks.append({"name": "what the bytes allow", **at, "value": p["allowed"]})
    ticks, axis = {n: f"{n:g}" for n in (1.0, 3.0, 10.0, 30.0, 100.0)}, "active neurons, %"
    plots = panels("plot-sparse-speed", f"Skipping neurons: {name}", marks, axis, ticks, log=True)
    notes = absences(rows, BENCH)
    return Section("sparse-speed", "Skipping neurons", LEAD, plots, (made,), notes)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.sparse_speed", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--dense", type=Path, help="what to compare with (MODEL, run dense)")
    parser.add_argument(
        "--share", type=float, action="append", help="of active neurons, may repeat (a curve)"
    )
    parser.add_argument("--powerinfer", default="", metavar="PROGRAM", help="PowerInfer's main")
    options = parsed(parser, RULE, QUICK)

    def measured(tell: Tell) -> Generator[list[Measurement], None, None]:
        dense, shares = options.dense or options.model, options.share or SHARES
        yield from curve(
            options.model, dense, shares, options.threads, options.rule, tell, options.powerinfer
        )

    return report(options, section, measured)


if __name__ == "__main__":
    sys.exit(main())
