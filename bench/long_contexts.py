"""What a step behind a long text takes, and what it reads for that: with all of the text, with each
method at each budget, and of llama.cpp, in turns.

`python -m bench.long_contexts MODEL [-o PAGE.md]` fills caches with random keys and values as if a
prompt had been read, since what they hold changes no speed, and llama.cpp's with the first 256
tokens of one again and again. The bound is the time that reading a step's bytes takes at the
machine's probed bandwidth. What `python -m
bench.needle` last found again by the same method and budget stands beside it. `--kv-policy
quest:budget=2048 snapkv:capacity=1024 kivi2` races these alone.
"""

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

from bench.child import ChildError, settle
from bench.contenders.contender import EngineTest, Setup
from bench.contenders.racer import Racer, enter
from bench.engine.node_cost import SEEING, cells_seen, cost_of, stored_bytes
from bench.engine.profile import timed_step
from bench.machine.clock import Stamped
from bench.machine.limits import limits
from bench.needle import TWO_BITS, Heads, Way, ways
from bench.quality import figure
from bench.race.experiment import Contender, Racing, Rule, Sample, timed
from bench.race.program import Tell, parsed, report
from bench.race.results import Limit, Measurement, ResultsError, read_folder, results_folder
from bench.report import long_contexts as told
from bench.report.lookup import rows_of
from bench.report.needle import BENCH as NEEDLE
from engine.cache.pages import Pages
from engine.cache.streaming import Streaming
from engine.cache.two_bits import TwoBits
from engine.embedded import resolve
from engine.engine import Engine
from engine.graph import Node
from engine.model import Model
from engine.policies.retrieval import write
from engine.policies.table import POLICIES, parse_policy
from reference.formats import FORMATS
from reference.formats.kivi import GROUP, page_of_keys

OPS = ("page_extremes", "page_scores", "choose_pages")
APART = (".q", ".put", "_new")  # suffixes of labels of nodes that split and join heads
ROWS = 1024  # cells that are drawn; the others repeat them
STAMPED = 30  # steps with a time stamp after each call
BUDGETS, FEW = (0.05, 0.125, 0.25, 0.5), (0.3,)
RULE, QUICKLY = Rule(least=9, error=0.005, cap_seconds=60), Rule(least=3, most=3)


def _chosen(text: str, held: int) -> Way:
    policy = parse_policy(text)
    kept = getattr(policy, "capacity", getattr(policy, "budget", 0))
    return Way(text, kept / held, {"kv_policy": policy})


def groups(asked: Namespace, heads: Heads) -> Iterator[list[Way]]:
    """The ways that take turns, each group beside all cells and llama.cpp."""
    held = asked.held
    if asked.kv_policy:
        yield [
            TWO_BITS if text == TWO_BITS.name else _chosen(text, held) for text in asked.kv_policy
        ]
        return
    yield [TWO_BITS]
    for name in POLICIES:
        yield ways(name, FEW if asked.quick else BUDGETS, held, heads)


def fill(model: Model, held: int) -> float:
    """Fill sequence 0 with a text; returns the seconds that a policy took to evict from it."""
    rng = np.random.default_rng(0)
    cells, method = model.cells, model.method
    if isinstance(method, TwoBits):
        kv_heads, width = model.config.kv_heads, model.config.head_dim
        page = page_of_keys(rng.standard_normal((GROUP, kv_heads, width), np.float32))
        for pages in model.pages.values():
            assert isinstance(pages, np.ndarray)
            pages[:] = page.reshape(pages[:1].shape)
    layout = FORMATS["F16" if isinstance(method, TwoBits) else model.options.kv_format]
    streaming = model.pages.values() if isinstance(method, Streaming) else ()
    for cache in (*model.caches.values(), *streaming):
        assert isinstance(cache, np.ndarray)
        width = cache.shape[1] // layout.block_bytes * layout.block
        rows = layout.quantise(rng.standard_normal((ROWS, width), np.float32))
        cache[:] = np.resize(rows, cache.shape)
    placed = cells.place(range(held), [(0,)] * held)
    if isinstance(method, Streaming):  # as after restoring a session
        method.restore(placed, {})
    if isinstance(method, TwoBits):  # the latest tokens have rows, all others pages
        unpacked = model.options.kv_residual + 2 * GROUP
        method.restore(cells.list_of(0), {"first": max(0, held - unpacked)})
    started = time.perf_counter()
    model.method.begin(0, held)
    model.method.finish(0)
    return time.perf_counter() - started


def bookkeeping(model: Model, held: int) -> float:
    """The share of a step in the policy's own nodes, without attention over the chosen cells."""
    timed_step(model, [1], held)  # its inputs are still in place
    plan, team = model.plan, model.team
    stamped = Stamped(plan.entries)
    bare = float(np.median([stamped.bare(team) for _ in range(STAMPED)]))
    laps = np.median([stamped.run(team) for _ in range(STAMPED)], axis=0) - bare
    own = [_is_bookkeeping(plan.steps[call.step].node) for call in plan.calls]
    return float(laps[own].sum() / laps.sum())


def _is_bookkeeping(node: Node) -> bool:
    joining = node.op == "add" and node.label.endswith(".attention")
    return node.op in OPS or joining or node.label.endswith((".attention_all", *APART))


def bytes_read(model: Model, held: int) -> tuple[float, float]:
    """Bytes that a step reads of weights and cache, and of the cache alone."""
    timed_step(model, [1], held)
    sizes, seen, parts = {"tokens": 1, "outputs": 1}, cells_seen(model, 1), [0.0, 0.0]
    for i, one in enumerate(model.plan.steps):
        cost = cost_of(one, sizes, held, seen=seen.get(i))
        parts[one.node.op in SEEING] += stored_bytes(one.node, sizes, cost)
    return sum(parts), parts[1]


class Race:
    """Ways after the same text, each an engine of this process, and llama.cpp in a process of its
    own. `base` is what their rows have in common."""

    def __init__(self, asked: Namespace, tell: Tell, stack: ExitStack) -> None:
        self._held, self._path, self._threads = asked.held, resolve(asked.model), asked.threads
        self._racing = Racing(asked.rule, tell, self._path.stem)
        self._memory = limits([self._threads]).bandwidth(self._threads)
        self._base = Measurement(
            told.BENCH, told.STEP, model=self._path.name, threads=self._threads, tokens=1,
            settings=f"held={self._held}",
        )  # fmt: skip
        self._racing.say(told.PEER)
        self._test = EngineTest("tg", generate=1, depth=self._held)
        setup = Setup(self._threads, self._test.context, sequences=1)
        peer = "was not asked for" if asked.no_peer else enter(told.PEER, self._path, setup)
        self._peer = stack.enter_context(peer) if isinstance(peer, Racer) else None
        self._absent = "" if self._peer else str(peer)
        if self._peer:
            self._peer.fill(self._held)
        self._full = self._opened(Way(told.FULL), stack)

    def _opened(self, way: Way, stack: ExitStack) -> tuple[Way, Model, list[Measurement]]:
        """A model with the text in its cache, and the known facts of its steps."""
        self._racing.say(f"{way.name}, {way.budget:.3g}")
        options = {"batch": 64, "sequences": 1, "threads": self._threads, **way.options}
        context = self._held + 64
        model = stack.enter_context(Engine.load(self._path, context=context, **options)).model
        evicting, held = fill(model, self._held), self._held
        timed_step(model, [1], held)
        whole, of_cache = bytes_read(model, held)
        row = replace(self._base, variant=way.name, shape=f"budget={way.budget:g}")
        memory = self._memory
        bound = Limit("memory read", whole / memory.per_second, memory.spread)
        known = [
            bound.of(replace(row, bytes=whole)),
            figure(row, told.READ, of_cache, "B"),
            figure(row, told.CACHE, model.cache_bytes, "B"),
        ]
        if model.method.evicts:
            known.append(figure(row, told.TIDYING, evicting, "s"))
        if isinstance(model.method, Pages | Streaming):
            known.append(figure(row, told.BOOKKEEPING, bookkeeping(model, held), "share"))
        return way, model, known

    def of(self, ways: list[Way]) -> list[Measurement]:
        """Rows of these ways, of all cells and of llama.cpp, of one race."""
        with ExitStack() as stack:
            opened = [self._full, *(self._opened(way, stack) for way in ways)]
            entries = {
                f"{way.name} {way.budget}": Contender(
                    rows[0], timed(partial(timed_step, model, [1], self._held))
                )
                for way, model, rows in opened
            }
            row = replace(self._base, contender=told.PEER, variant=told.PEER, shape="budget=1")
            peer = Contender(row, self._beside, excused=ChildError, absent=self._absent)
            rows = self._racing(ways[0].name, {**entries, told.PEER: peer})
            return rows + [row for _, _, known in opened[1:] for row in known[1:]]

    def heads(self, folder: Path) -> Heads:
        """A file with random full-attention heads, since no speed depends on which."""
        config, path = self._full[1].config, folder / "heads.tsv"
        found = np.random.default_rng(0).random((config.blocks, config.kv_heads))
        write(path, found)
        return Heads(path, found.size)

    @property
    def full(self) -> list[Measurement]:
        """The known facts of all cells, which every race includes."""
        return self._full[2][1:]

    def _beside(self) -> Sample:
        """A step of llama.cpp, once our threads are idle."""
        assert self._peer
        settle()
        return self._peer.sample(self._test)


def measured(asked: Namespace, tell: Tell) -> Generator[list[Measurement], None, None]:
    """Rows, one race after the other."""
    if asked.held < 1:
        raise ValueError(f"--held is {asked.held}: want one token at least")
    with ExitStack() as stack:
        race = Race(asked, tell, stack)
        yield race.full
        for ways in groups(asked, race.heads(Path(stack.enter_context(TemporaryDirectory())))):
            yield race.of(ways)


def answers() -> pd.DataFrame:
    """The last results of `bench.needle` on this machine; nothing if it never ran."""
    try:
        runs, _ = read_folder(results_folder())
    except ResultsError:
        return pd.DataFrame()
    asked = [run for run in runs if any(row.bench == NEEDLE for row in run.measurements)]
    return rows_of(asked[-1:])


def main() -> int:
    parser = ArgumentParser(prog="python -m bench.long_contexts", description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--held", type=int, default=16384, help="tokens of the text (%(default)s)")
    parser.add_argument(
        "--kv-policy",
        nargs="+",
        default=[],
        metavar="POLICY",
        help=f"race these, or {TWO_BITS.name}",
    )
    parser.add_argument("--no-peer", action="store_true", help=f"leave {told.PEER} out")
    options = parsed(parser, RULE, QUICKLY)
    return report(options, partial(told.section, found_again=answers()), partial(measured, options))


if __name__ == "__main__":
    sys.exit(main())
