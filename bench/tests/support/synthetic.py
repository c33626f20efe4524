"""Synthetic runs: plausible figures of every kind that a report shows."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bench.machine.conditions import Conditions
from bench.machine.limits import Cache, Limits, Rate
from bench.ops.cases import CACHES
from bench.quality import BITS, ERROR, FLOOR, GAIN, MIXED, PURE, estimates, figure, row_of
from bench.race.experiment import Rule
from bench.race.results import Measurement, Results, Run
from bench.report import lookup
from bench.report.table import Table
from bench.sparsity import ALL, FIRED, FIRING, PRECISION, PREDICTED, RECALL, SHARE
from bench.sparsity import rows_of as sparsity_rows
from engine.perplexity import Estimate
from kernels.kernel import Kernel
from kernels.provenance import machine
from kernels.table import KERNELS
from reference.formats import FORMATS as STORED
from reference.table import OPS

THREADS = 2


def machine_of(
    bandwidths: Mapping[int, float],
    peaks: Mapping[tuple[str, str], float],
    spread: float = 0.0,
    caches: Sequence[Cache] = (Cache("L1d", 32 << 10, 1), Cache("L2", 1 << 20, 1)),
    threads: Sequence[int] = (1, 2),
) -> Limits:
    """A machine whose threads reach these rates each: bytes a second by working set, operations a
    second by arithmetic and unit."""
    reads = [Rate("read", n, n * rate, spread, size) for n in threads
             for size, rate in bandwidths.items()]  # fmt: skip
    done = [Rate(kind, n, n * rate, spread, unit=unit) for n in threads
            for (kind, unit), rate in peaks.items()]  # fmt: skip
    return Limits(tuple(caches), (*reads, *done), "2026-11-21")


ENDLESS = {(kind, "a unit"): 1e18 for kind in ("f32", "bf16", "int8")}
LIMITS = machine_of(
    {32 << 10: 180e9, 2 << 20: 90e9, 16 << 20: 31e9, 256 << 20: 16.8e9},
    {("f32", "avx512"): 118e9, ("int8", "avx512_vnni"): 460e9},
    0.02,
    (Cache("L1d", 48 << 10, 1), Cache("L2", 2 << 20, 1), Cache("L3", 32 << 20, 2)),
)
VAST = machine_of({1 << 14: 5e14, 1 << 24: 5e14}, ENDLESS)  # which nothing is too fast for
QUICK = Rule(least=5, error=1.0, cap_seconds=0.2)
CONDITIONS = Conditions(
    commit="0123456789abcdef0123456789abcdef01234567",
    dirty=False,
    device="Some CPU @ 2.00GHz",
    machine=machine(),
    cores=2,
    affinity=(0, 1),
    governor="performance",
    load=0.12,
    steal=0.0007,
    memory=8 << 30,
    system="Linux 6.1.0, Python 3.11.2",
    versions={"numpy": "2.2.0", "numba": "0.65.1"},
)
TINY = "tinyllama-1.1b"
SHAPES = {
    TINY: ((2048, 2048), (2048, 256), (2048, 5632), (5632, 2048)),
    "llama-2-7b, relullama-7b": ((4096, 4096), (4096, 11008), (11008, 4096)),
}
FORMATS = ("F32", "F16", "BF16", "Q8_0", "Q4_0")
SIDES = (128, 256, 512, 1024, 2048)
OTHERS = ("rms_norm", "swiglu", "add", "softmax", "silu", "embedding")
AXES = {"hidden": 2048, "width": 5632, "vocab": 32000}
PACES = {"avx512_vnni": 0.9, "generic": 0.62, "scalar": 0.03, "numpy": 0.95}  # of the limit
MODELS = {"tinyllama-q4_0": 33.0, "tinyllama-q8_0": 21.5, "tinyllama-f16": 12.6, "story-f16": 900.0}
TESTS = {  # tokens, and how many times faster than generation
    "pp512": (512, 9.0),
    "pp128": (128, 8.0),
    "tg128": (128, 1.0),
    "tg32 @ d1024": (32, 0.86),
    "pp128+tg32 x1": (160, 3.0),
    "pp128+tg32 x4": (640, 4.0),
}
PEERS = {"llama.cpp": 0.94, "transformers": 0.41}
ABSENT = "transformers is not installed: docs/peers.md says how"
STARTS = {  # bench, test and cache
    ("engine", "load", ""): 0.9,
    ("engine", "first token (warm)", ""): 0.4,
    ("start", "first token", "cold"): 14.0,
    ("start", "first token", "warm"): 1.6,
}
NODES = {
    "attn_norm": ("rms_norm", "generic", "", {"tokens": 1, "hidden": 2048}),
    "attn_q": ("linear", "avx512_vnni", "Q4_0", {"tokens": 1, "hidden": 2048, "out": 2048}),
    "ffn_up": ("linear", "avx512_vnni", "Q4_0", {"tokens": 1, "hidden": 2048, "out": 5632}),
    "ffn_act": ("swiglu", "generic", "", {"tokens": 1, "width": 5632}),
    "ffn_down": ("linear", "avx512_vnni", "Q4_0", {"tokens": 1, "hidden": 5632, "out": 2048}),
}
DIVERGENCES = {  # from F16, Q5_1's being larger than it should
    "F16": 0.0, "Q8_0": 1e-4, "Q5_1": 4e-3, "Q5_0": 2e-3, "IQ4_NL": 6e-3, "Q4_0": 9e-3,
    "Q2_K": 0.3, "TQ1_0": 1.2,
}  # fmt: skip
REJECTED = "300% of the limit (L1d read): its cost or the clock is wrong"


class Maker:
    """Generates samples with a long tail, as clocks do; `pace` scales all of them."""

    def __init__(self, seed: int, pace: float = 1.0) -> None:
        self.rng = np.random.default_rng(seed)
        self.pace = pace

    def samples(self, seconds: float, count: int = 7) -> tuple[float, ...]:
        tail = 1 + self.rng.exponential(0.015, count)
        return tuple(map(float, seconds / self.pace * tail))

    def row(self, seconds: float, *names: str, count: int = 7, **facts: Any) -> Measurement:
        """A measurement with this many samples around these seconds."""
        about = {"threads": THREADS, **facts}
        return Measurement(*names, **about, samples=self.samples(seconds, count))

    def op(
        self, op: str, variant: str, stored: str, shape: dict[str, int], model: str, cache: str
    ) -> Measurement:
        """At the variant's pace of the machine's limit."""
        cost = OPS[op].cost(shape, stored or None)
        arithmetic = "int8" if stored.startswith("Q") else "f32"
        limit = LIMITS.limit(cost, arithmetic, THREADS, int(cost.bytes) if cache == "hot" else None)
        assert limit is not None
        near = PACES.get(variant, 0.5) * self.rng.uniform(0.75, 1.0)
        sizes = ",".join(f"{axis}={size}" for axis, size in shape.items())
        return limit.of(self.row(
            limit.seconds / near + 2e-7, "op", op, target="cpu", variant=variant, format=stored,
            shape=sizes, model=model, cache=cache, bytes=cost.bytes, operations=cost.operations,
        ))  # fmt: skip


def ops(maker: Maker) -> Iterator[Measurement]:
    """Linear kernels of some formats at sizes of models and as squares, others, one impossible."""

    def of(kernel: Kernel, shape: dict[str, int], model: str, cache: str) -> Measurement:
        return maker.op(kernel.op, kernel.variant, kernel.format or "", shape, model, cache)

    squares = [dict.fromkeys(("tokens", "hidden", "out"), side) for side in SIDES]
    models = [(model, hidden, out) for model, many in SHAPES.items() for hidden, out in many]
    for kernel in (k for k in KERNELS if k.op == "linear" and k.format in FORMATS):
        for (model, hidden, out), tokens, cache in product(models, (1, 8, 512), CACHES):
            yield of(kernel, {"tokens": tokens, "hidden": hidden, "out": out}, model, cache)
        for shape in squares:
            race = f"square {shape['out']}" if kernel.format == "F32" else ""
            yield replace(of(kernel, shape, "sweep", "hot"), rivals=race)
        yield from overheads(maker, kernel)
    for shape in squares:
        found = maker.op("linear", "numpy", "F32", shape, "sweep", "hot")
        yield replace(found, contender="numpy", variant="", rivals=f"square {shape['out']}")
    others = (k for k in KERNELS if k.op in OTHERS)
    for kernel, tokens, cache in product(others, (1, 512), CACHES):
        shape = {axis: AXES.get(axis, tokens) for axis in OPS[kernel.op].axes}
        yield of(kernel, shape, TINY, cache)
    found = maker.op("add", "generic", "", {"tokens": 1, "width": 2048}, TINY, "hot")
    yield replace(found, samples=(found.limit_seconds / 3,) * 5, note=REJECTED)


def overheads(maker: Maker, kernel: Kernel) -> Iterator[Measurement]:
    about = {"variant": kernel.variant, "format": kernel.format or "", "count": 5}
    yield maker.row(2.1, "op", kernel.op, phase="compile", **about)
    yield maker.row(0.8, "op", kernel.op, phase="certify", **about)
    if kernel.pack:
        packed = {"phase": "pack", "shape": "hidden=4096,out=11008", "bytes": 5e7}
        yield maker.row(0.004, "op", kernel.op, **packed, **about)


def engine(maker: Maker) -> Iterator[Measurement]:
    """Every model against a peer that is installed and one that is not."""
    for model, rate in MODELS.items():
        about: dict[str, Any] = {"model": f"{model}.gguf"}
        for test, (tokens, times) in TESTS.items():
            race = about | {"rivals": f"{model} {test}"}
            for name, some, faster in parts(test, tokens):
                seconds = some / rate / times / faster
                slower = PEERS["llama.cpp"] * (0.3 if test.startswith("pp") else 1.0)
                yield maker.row(seconds, "engine", name, tokens=some, **race)
                yield maker.row(seconds / slower, "engine", name, "llama.cpp", tokens=some, **race)
            absent = Measurement("engine", test, "transformers", note=ABSENT, tokens=tokens)
            yield replace(absent, threads=THREADS, **race)
        for (bench, test, cache), seconds in STARTS.items():
            yield maker.row(seconds, bench, test, **about, cache=cache, count=5)


def parts(test: str, tokens: int) -> list[tuple[str, int, float]]:
    """The test and, of a batched one, its prompt and generation: tokens, how many times faster."""
    whole = [(test, tokens, 1.0)]
    if "+" in test:
        whole += [(f"{test} prompt", tokens * 4 // 5, 2.2)]
        whole += [(f"{test} generation", tokens // 5, 0.5)]
    return whole


def nodes() -> Iterator[Measurement]:
    """A step of a model of eight blocks, 6% of it in no node."""
    maker, model, total = Maker(9), "tinyllama-q4_0", 0.0
    for block, (label, of) in product(range(8), NODES.items()):
        found = maker.op(*of, model, "cold")
        total += found.median
        yield replace(found, bench="node", shape=f"blk.{block}.{label}", cache="")
    limit = {"bytes": 6e8, "limit": "memory read", "limit_seconds": 0.8 * total, "tokens": 1}
    yield maker.row(1.06 * total, "node", "step", model=model, **limit)
    yield maker.row(0.06 * total, "node", "remainder", model=model)


def of_the_card(maker: Maker, model: str) -> Iterator[Measurement]:
    """All rows of a speed card: the model's rate is 10 tokens/s, and llama.cpp's 8."""
    speeds = {  # by test: tokens, and the tokens/s of Assay, of it with fast numerics, of llama.cpp
        "tg128": (128, 10, 10, 8),
        "pp512": (512, 100, 200, 40),
        "tg32 @ d128": (32, 10, 10, 8),
        "tg32 @ d4096": (32, 9, 9, 6),
        "pp32+tg32 x1 generation": (32, 10, 10, 8),
        "pp32+tg32 x8 generation": (256, 50, 50, 32),
    }
    for test, (tokens, *rates) in speeds.items():
        race = {"model": f"{model}.gguf", "tokens": tokens, "rivals": f"{model} {test[:9]}"}
        for who, rate in zip(("assay", "assay fast", "llama.cpp"), rates, strict=True):
            yield maker.row(tokens / rate, "engine", test, who, count=15, **race)
    yield from beside_the_races(maker, model)


def beside_the_races(maker: Maker, model: str) -> Iterator[Measurement]:
    """Threads, streams, memory, gap, empty steps, and the nodes of a prompt."""
    about: dict[str, Any] = {"model": f"{model}.gguf"}
    for threads, seconds in ((2, 5.0), (1, 9.5)):
        some = about | {"threads": threads, "tokens": 512, "rivals": f"{model} threads"}
        yield maker.row(seconds, "scaling", "pp512", count=15, **some)
    limit = about | {"bytes": 6e8, "limit": "memory read", "limit_seconds": 0.015}
    race = f"{model} stream"
    yield maker.row(0.025, "stream", "step", "assay", count=15, rivals=race, **limit)
    yield maker.row(0.02, "stream", "step", "reading", count=15, rivals=race, **limit)
    yield maker.row(0.022, "stream", "linear nodes", "assay", count=15, **limit)
    held = about | {"threads": THREADS, "shape": "file=620000000,cache=23000000", "unit": "B"}
    yield Measurement("memory", "load, pp512", **held, samples=(938.7e6,) * 3)
    yield maker.row(1e-6, "gap", "pp512", "assay fast", unit="NMSE", **about)
    for threads in (1, 2):
        some = about | {"threads": threads, "shape": "calls=300,stages=100"}
        yield maker.row(threads * 1e-5, "empty step", "empty step", **some)
    step = about | {"threads": THREADS, "bench": "node", "phase": "prompt"}
    did = {"operations": 1.4e12, "limit": "int8", "limit_seconds": 0.5}
    nodes = {"linear": 0.7, "quantise_activations": 0.1, "attention": 0.15, "swiglu": 0.02}
    for op, seconds in nodes.items():
        done = did if op == "linear" else {}
        yield Measurement(**step, test=op, shape=f"blk.0.{op}", samples=(seconds,) * 5, **done)
    yield Measurement(**step, test="step", tokens=512, samples=(1.0,) * 5)
    yield Measurement(**step, test="remainder", samples=(0.03,))


def qualities() -> Iterator[Measurement]:
    """The lower bound, each format, and two mixes."""
    yield figure(row_of("", "", THREADS), FLOOR, 1.3, "perplexity")
    rows = [(PURE, *row) for row in DIVERGENCES.items()]
    for kind, name, divergence in (*rows, (MIXED, "Q6_K", 1e-3), (MIXED, "Q2_K", 0.2)):
        row = row_of(name, kind, THREADS)
        yield figure(row, BITS, STORED[name].bits, "bits")
        yield from estimates(row, *far(divergence))
        yield figure(row, GAIN + ERROR, 0.002, "perplexity")


def far(divergence: float) -> tuple[Estimate, Estimate, Estimate]:
    """Perplexity, divergence and agreement of argmax for a model at this distance from another."""
    same = Estimate(1 - min(divergence, 1) / 2, 0.001)
    return Estimate(1.33 + divergence, 0.01), Estimate(divergence, divergence / 10), same


def sparsities() -> Iterator[Measurement]:
    """All neurons, those that fire, and predictions that grow worse with the threshold."""
    for kind, threshold, share in (
        (ALL, 0.0, 1.0), (FIRING, 0.0, 0.1), (PREDICTED, 0.0, 0.5), (PREDICTED, 1.0, 0.2),
        (PREDICTED, 4.0, 0.05),
    ):  # fmt: skip
        divergence = 1e-3 * 10**threshold if kind == PREDICTED else 0.0
        shares = {SHARE: share, FIRED: 0.1, RECALL: min(1.0, share * 5)}
        shares[PRECISION] = 0.1 / max(share, 0.1)
        yield from sparsity_rows(kind, threshold, THREADS, shares, *far(divergence))


def offloads(maker: Maker) -> Iterator[Measurement]:
    """A race of three ways, of which one is absent, and the disk's 2.4 GB/s."""
    race = {"shape": "dense", "model": "tinyllama-f16.gguf", "rivals": "dense"}
    within = "budget=1100.0MB,resident=1000.0MB,streamed=1200.0MB"
    for way, told, seconds, size in (
        ("naive", "", 1.1, 2.2e9), ("streamed", within, 0.55, 1.2e9),
    ):  # fmt: skip
        limit = race | {"bytes": size, "limit": "disk", "limit_seconds": size / 2.4e9, "tokens": 1}
        row = maker.row(seconds, "offload", way, count=15, settings=told, **limit)
        yield row
        yield replace(row, phase="bytes", unit="B", samples=(size,) * 15, limit_seconds=0.0)
    killed = "killed by the system: more than 1100 MB of memory"
    absent = Measurement("offload", "llama.cpp", "llama.cpp", note=killed)
    yield replace(absent, threads=THREADS, **race)
    disk = maker.row(0.2, "offload", "disk, in a row", **race)
    yield disk
    yield replace(disk, phase="bytes", unit="B", samples=(4.8e8,) * 7)


def write_run(
    folder: Path,
    when: str = "2026-11-21T10:00:00+00:00",
    commit: str = CONDITIONS.commit,
    *,
    seed: int = 0,
    pace: float = 1.0,
    **conditions: Any,
) -> Path:
    """A whole run as the benchmarks would write it at that time."""
    maker = Maker(seed, pace)
    results = Results(folder, replace(CONDITIONS, commit=commit, **conditions), LIMITS.to_json())
    card = beside_the_races(maker, "tinyllama-q4_0")
    results.add(*ops(maker), *engine(maker), *nodes(), *card, *qualities(), *sparsities())
    results.add(*offloads(maker))
    first, rest = results.path.read_text().split("\n", 1)
    results.path.write_text(json.dumps(json.loads(first) | {"when": when}) + "\n" + rest)
    return results.path


def kernels_of_a_run(
    seed: int, slower: Mapping[str, float] | None = None, pace: float = 1.0, count: int = 20,
    peer: bool = True,
) -> Iterator[Measurement]:  # fmt: skip
    """So many kernels, each sample with a tail; some of them, or all, are slower."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        factor = pace * (slower or {}).get(f"op{i}", 1.0)
        row = Measurement("op", f"op{i}", target="cpu", threads=2, cache="hot")
        seconds = 1e-3 * (1 + i) * factor * (1 + rng.exponential(0.02, 20))
        yield replace(row, samples=tuple(seconds))
        if peer:
            seconds = 2e-3 * pace * (1 + rng.exponential(0.02, 20))
            yield replace(row, contender="numpy", samples=tuple(seconds))


def limits(bytes_per_second: float = 1e13, cache: int = 1 << 20) -> Limits:
    """A machine with two caches and a memory, each ten times slower than the one before, for any
    threads."""
    rates = {1 << 10: 1.0, 1 << 18: 0.1, 1 << 30: 0.01}
    caches = Cache("L1d", 1 << 14, 1), Cache("L2", cache, 1)
    one = {size: bytes_per_second * part for size, part in rates.items()}
    found = machine_of(one, ENDLESS, 0.1, caches, [1])
    more = tuple(replace(rate, threads=2) for rate in found.rates)
    return replace(found, rates=found.rates + more)


def run_of(*rows: Measurement) -> Run:
    return Run("r", "2026-11-21T10:00:00+00:00", CONDITIONS, LIMITS.to_json(), rows)


def rows_of(*rows: Measurement) -> pd.DataFrame:
    """As the report's sections are given them."""
    return lookup.rows_of([run_of(*rows)])


def shown(table: Table) -> list[list[str]]:
    """The cells of each row of a table."""
    return [[cell.text for cell in row] for row in table.rows]
