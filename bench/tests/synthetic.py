"""Runs that nobody measured: plausible figures of every kind that a report shows."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

import bench.results
from bench.conditions import Conditions
from bench.limits import Bandwidth, Cache, Limits, Peak
from bench.results import Measurement, Results
from bench.workload import cost_shape
from kernels.provenance import machine
from kernels.table import KERNELS
from reference.op import Cost
from reference.table import OPS

THREADS = 2
MIB = 2**20
LIMITS = Limits(
    caches=(Cache("L1d", 48 << 10, 1), Cache("L2", 2 * MIB, 1), Cache("L3", 32 * MIB, 2)),
    bandwidths=tuple(
        Bandwidth("read", threads, size, threads * rate * 1e9, 0.02)
        for threads in (1, 2)
        for size, rate in ((32 << 10, 180), (2 * MIB, 90), (16 * MIB, 31), (256 * MIB, 16.8))
    ),
    peaks=tuple(
        Peak(kind, unit, threads, threads * rate * 1e9, 0.02)
        for threads in (1, 2)
        for kind, unit, rate in (("f32", "avx512", 118), ("int8", "avx512_vnni", 460))
    ),
    when="2026-11-21",
)
CONDITIONS = Conditions(
    commit="0123456789abcdef0123456789abcdef01234567", dirty=False,
    device="Some CPU @ 2.00GHz", machine=machine(), cores=2, affinity=(0, 1),
    governor="performance", load=0.12, steal=0.0007, memory=8 << 30,
    system="Linux 6.1.0, Python 3.11.2", versions={"numpy": "2.2.0", "numba": "0.65.1"},
)  # fmt: skip
SHAPES = {
    "tinyllama-1.1b": ((2048, 2048), (2048, 256), (2048, 5632), (5632, 2048)),
    "llama-2-7b, relullama-7b": ((4096, 4096), (4096, 11008), (11008, 4096)),
}
SIDES = (128, 256, 512, 1024, 2048)
PACES = {"avx512_vnni": 0.9, "generic": 0.62, "scalar": 0.03, "numpy": 0.95}
MODELS = {"tinyllama-q4_0": 33.0, "tinyllama-q8_0": 21.5, "tinyllama-f16": 12.6, "story-f16": 900.0}
PEERS = {"llama.cpp": 0.94, "transformers": 0.41}
ABSENT = "transformers is not installed: docs/peers.md says how"


class Maker:
    """Draws samples with a long tail, as clocks give them."""

    def __init__(self, seed: int, pace: float = 1.0) -> None:
        self.rng = np.random.default_rng(seed)
        self.pace = pace

    def samples(self, seconds: float, count: int = 7) -> tuple[float, ...]:
        tail = 1 + self.rng.exponential(0.015, count)
        return tuple(seconds / self.pace * tail)

    def op(
        self, op: str, variant: str, format: str, shape: str, model: str, cache: str
    ) -> Measurement:
        """As fast as the variant's pace of the machine's limit."""
        sizes = {a: int(s) for a, s in (word.split("=") for word in shape.split(","))}
        cost: Cost = OPS[op].cost(cost_shape(op, sizes), format or None)  # type: ignore[arg-type]
        int8 = "int8" if format.startswith("Q") and variant != "numpy" else "f32"
        limit = LIMITS.limit(cost, int8, THREADS, int(cost.bytes) if cache == "hot" else None)
        assert limit is not None
        near = PACES.get(variant, 0.5) * self.rng.uniform(0.75, 1.0)
        return Measurement(
            bench="op", test=op, target="cpu", variant=variant, format=format, shape=shape,
            model=model, threads=THREADS, cache=cache,
            samples=self.samples(limit.seconds / near + 2e-7), bytes=cost.bytes,
            operations=cost.operations, limit=limit.name, limit_seconds=limit.seconds,
            limit_spread=limit.spread, kernel="feed", checked=2,
        )  # fmt: skip


def ops(maker: Maker) -> Iterator[Measurement]:
    linear = [k for k in KERNELS if k.op == "linear"]
    for kernel in linear:
        for model, sizes in SHAPES.items():
            for hidden, out in sizes:
                for tokens in (1, 8, 512):
                    shape = f"tokens={tokens},hidden={hidden},out={out}"
                    for cache in ("cold", "hot"):
                        yield maker.op(
                            "linear", kernel.variant, kernel.format or "", shape, model, cache
                        )
        for side in SIDES:
            shape = f"tokens={side},hidden={side},out={side}"
            found = maker.op("linear", kernel.variant, kernel.format or "", shape, "sweep", "hot")
            yield replace(found, rivals=f"square {side}" if kernel.format == "F32" else "")
    for side in SIDES:
        shape = f"tokens={side},hidden={side},out={side}"
        found = maker.op("linear", "numpy", "F32", shape, "sweep", "hot")
        yield replace(found, contender="numpy", variant="", rivals=f"square {side}")
    for kernel in KERNELS:
        if kernel.op in ("rms_norm", "swiglu", "add", "softmax", "silu", "embedding"):
            axes = {"tokens": 1, "hidden": 2048, "width": 5632, "vocab": 32000}
            for tokens in (1, 512):
                sizes = {a: axes[a] for a in OPS[kernel.op].axes} | {"tokens": tokens}
                shape = ",".join(f"{axis}={size}" for axis, size in sizes.items())
                for cache in ("cold", "hot"):
                    yield maker.op(
                        kernel.op,
                        kernel.variant,
                        kernel.format or "",
                        shape,
                        "tinyllama-1.1b",
                        cache,
                    )
    for kernel in linear:
        about = {
            "bench": "op",
            "test": "linear",
            "variant": kernel.variant,
            "target": "cpu",
            "format": kernel.format or "",
            "threads": THREADS,
        }
        yield Measurement(**about, phase="compile", samples=maker.samples(2.1, 5))
        yield Measurement(**about, phase="certify", samples=maker.samples(0.8, 5))
        if kernel.pack:
            yield Measurement(
                **about,
                phase="pack",
                shape="tokens=1,hidden=4096,out=11008",
                bytes=2 * 25e6,
                samples=maker.samples(0.004, 5),
            )
    impossible = maker.op("add", "generic", "", "tokens=1,width=2048", "tinyllama-1.1b", "hot")
    yield replace(
        impossible,
        samples=(impossible.limit_seconds / 3,) * 5,
        note="300% of the limit (L2 read): its cost or the clock is wrong",
    )


def parts(test: str, tokens: int) -> list[tuple[str, int, float]]:
    """The test and, of a batched one, its prompt and its generation: tokens, and how much faster."""
    whole = [(test, tokens, 1.0)]
    if "+" not in test:
        return whole
    return [
        *whole,
        (f"{test} prompt", tokens * 4 // 5, 2.2),
        (f"{test} generation", tokens // 5, 0.5),
    ]


def engine(maker: Maker, *, absent: bool) -> Iterator[Measurement]:
    for model, rate in MODELS.items():
        tests = {
            "pp512": (512, 9 * rate), "pp128": (128, 8 * rate), "tg128": (128, rate),
            "tg32 @ d1024": (32, 0.86 * rate), "pp128+tg32 x1": (160, 3 * rate),
            "pp128+tg32 x4": (640, 4 * rate),
        }  # fmt: skip
        for test, (tokens, speed) in tests.items():
            about = {
                "bench": "engine",
                "test": test,
                "model": f"{model}.gguf",
                "threads": THREADS,
                "tokens": tokens,
                "rivals": f"{model} {test}",
            }
            for name, some, faster in parts(test, tokens):
                yield Measurement(
                    **about | {"test": name, "tokens": some},
                    samples=maker.samples(some / speed / faster),
                )
            for peer, pace in PEERS.items():
                if peer == "transformers" and absent:
                    yield Measurement(**about, contender=peer, note=ABSENT)
                    continue
                bend = 0.3 if test.startswith("pp") else 1.0
                for name, some, faster in parts(test, tokens):
                    seconds = some / speed / pace / bend / faster
                    yield Measurement(
                        **about | {"test": name, "tokens": some},
                        contender=peer,
                        samples=maker.samples(seconds),
                    )
        for bench, test, seconds in (
            ("engine", "load", 0.9),
            ("engine", "first token (warm)", 0.4),
            ("start", "first token (cold start)", 14.0),
            ("start", "first token (warm start)", 1.6),
        ):
            yield Measurement(
                bench,
                test,
                model=f"{model}.gguf",
                threads=THREADS,
                samples=maker.samples(seconds, 5),
            )


def nodes() -> Iterator[Measurement]:
    """A step of a model of eight blocks."""
    total = 0.0
    maker = Maker(9)
    about = {"bench": "node", "target": "cpu", "model": "tinyllama-q4_0", "threads": THREADS}
    for block in range(8):
        for label, op, shape in (
            ("attn_norm", "rms_norm", "tokens=1,hidden=2048"), ("attn_q", "linear", "tokens=1,hidden=2048,out=2048"),
            ("ffn_gate", "linear", "tokens=1,hidden=2048,out=5632"), ("ffn_up", "linear", "tokens=1,hidden=2048,out=5632"),
            ("ffn_act", "swiglu", "tokens=1,width=5632"), ("ffn_down", "linear", "tokens=1,hidden=5632,out=2048"),
        ):  # fmt: skip
            format, variant = ("Q4_0", "avx512_vnni") if op == "linear" else ("", "generic")
            found = maker.op(op, variant, format, shape, "tinyllama-q4_0", "cold")
            total += found.median
            yield replace(found, bench="node", shape=f"blk.{block}.{label}", cache="")
    yield Measurement(
        **about,
        test="step",
        samples=maker.samples(total * 1.06),
        bytes=6e8,
        limit="memory read",
        limit_seconds=total * 0.8,
    )
    yield Measurement(**about, test="remainder", samples=maker.samples(total * 0.06))


def write_run(
    folder: Path,
    when: str,
    commit: str = CONDITIONS.commit,
    *,
    seed: int = 0,
    pace: float = 1.0,
    busy: bool = False,
    absent: bool = True,
    limits: bool = True,
) -> Path:
    """A whole run as the benchmarks would have written it on that day."""
    maker = Maker(seed, pace)
    load = 3.1 if busy else CONDITIONS.load
    conditions = replace(CONDITIONS, commit=commit, load=load, dirty=busy)
    results = Results(folder, conditions, LIMITS.to_json() if limits else {})
    results.add(*ops(maker), *engine(maker, absent=absent), *nodes())
    lines = results.path.read_text().split("\n", 1)
    first = bench.results.read(results.path)
    results.path.write_text("\n".join([lines[0].replace(first.when, when), lines[1]]))
    return results.path
