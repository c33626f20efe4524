"""Profile of a step: seconds, GB/s and share of the machine's limit, node by node.

The plan's own entries run on the engine's own team, with a time stamp after each
(bench/machine/clock.py), so each node is a stage of its own. In turns with it, the step runs as in
the engine, without stamps: the difference from the nodes' sum is the remainder. It holds Python
before and after and waking the team, less the barriers that nodes of one stage share, so it may be
negative.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.engine.node_cost import active_neurons, bounds, cells_seen, cost_of
from bench.machine.clock import Seconds, Stamped
from bench.machine.limits import Limits
from bench.race.experiment import Rule, race
from bench.race.results import Measurement
from engine.cache.method import CacheMethod
from engine.cache.streaming import Streaming
from engine.compile.plan import Plan
from engine.engine import Engine
from engine.graph import Node, Value
from engine.model import Model, block_index
from engine.passes.count import Counted, neuron_counts
from engine.sparsity import settings
from kernels.cpu.runtime.team import Program, Team
from reference.formats.minicache import GROUP

RULE = Rule(least=5, error=0.01, cap_seconds=10)
TICK = 1e-9  # seconds, the unit of the clock
EMPTY = 9  # samples of a step with empty nodes,
STEPS = 200  # each the mean of so many,
SECONDS = 0.05  # or of those that fit in here: threads that share a core are slow to meet


class ProfileError(ValueError):
    """A step that cannot be profiled."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A step of `tokens` tokens, the last of which sees `context` cells: the rows of the `step`
    without stamps and of its `nodes`, whose seconds include a barrier each, which in the engine the
    nodes of a stage share. `kept` has the number of cells that blocks, or kinds of heads in them,
    kept before the step, where a policy evicts or shares them.

    `overhead_seconds` is the cost of all stamps, included in neither. `interruptions`: a node's
    median leaves out rare disturbances, though some node is disturbed in every step; this is the
    median of the sum of nodes less the sum of their medians, the time that other programs took.
    """

    step: Measurement
    nodes: tuple[Measurement, ...]
    context: int
    interruptions: float
    overhead_seconds: float
    kept: Mapping[str, int]

    @property
    def remainder(self) -> float:
        """Seconds of the step outside all nodes, interruptions included."""
        return self.step.median - sum(node.median for node in self.nodes)

    def by_op(self) -> list[tuple[int, Measurement]]:
        """The nodes of each kernel together, the longest first: their number and sum."""
        groups: dict[str, list[Measurement]] = {}
        for node in self.nodes:
            groups.setdefault(node.kernel_name, []).append(node)
        rows = [(len(nodes), together(nodes)) for nodes in groups.values()]
        return sorted(rows, key=lambda row: -row[1].median)

    def rejected(self) -> list[Measurement]:
        """Nodes faster than the machine can be."""
        return [node for node in self.nodes if node.impossible]

    def measurements(self) -> list[Measurement]:
        """As results: the step, the remainder, and each node."""
        rest = replace(
            self.step, test="remainder", samples=(max(0.0, self.remainder),), tokens=0, bytes=0.0,
            operations=0.0, limit="", limit_seconds=0.0, limit_spread=0.0,
        )  # fmt: skip
        return [self.step, rest, *self.nodes]


def together(nodes: Sequence[Measurement]) -> Measurement:
    """The sum of rows, under the limit that binds longest."""
    seconds: dict[str, float] = {}
    for node in nodes:
        seconds[node.limit] = seconds.get(node.limit, 0.0) + node.limit_seconds
    return replace(
        nodes[0],
        shape="",
        samples=(sum(node.median for node in nodes),),
        bytes=sum(node.bytes for node in nodes),
        operations=sum(node.operations for node in nodes),
        limit=max(seconds, key=lambda name: seconds[name]),
        limit_seconds=sum(seconds.values()),
        limit_spread=max(node.limit_spread for node in nodes),
    )


def profile(
    engine: Engine,
    tokens: int = 1,
    depth: int = 128,
    rule: Rule = RULE,
    limits: Limits | None = None,
    progress: Callable[[int], None] | None = None,
) -> Profile:
    """Time a step of `tokens` tokens of one sequence that has `depth` already, with one output.

    A policy evicts from these first. `progress` receives the number of repeats done, beginning with
    none. The engine's cache is cleared.
    """
    model, method, policy = engine.model, engine.model.method, engine.model.options.kv_policy
    check(engine, tokens, depth)
    if progress:
        progress(0)
    ids = token_ids(engine, depth + tokens)
    plan = model.plan_for(tokens)
    stamped = Stamped(plan.entries)
    laps: list[Seconds] = []
    bare: list[Seconds] = []

    def run() -> float:
        model.cells.remove(0, depth)
        started = time.perf_counter()
        model.step(ids[depth:], range(depth, depth + tokens), [(0,)] * tokens, [tokens - 1])
        return time.perf_counter() - started

    def run_stamped() -> float:
        """Its inputs are the last real step's, whose cells are still in place."""
        started = time.perf_counter()
        laps.append(stamped.run(model.team))
        seconds = time.perf_counter() - started
        bare.append(stamped.bare(model.team))
        return seconds

    engine.reset()
    try:
        if depth:
            method.begin(0, depth)
            model.evaluate(ids[:depth], 0)
            method.finish(0)
        shared = [s.node for s in plan.steps if s.node.op == "attention_minicache"]
        attending = [step.node.label for step in plan.steps if step.node.op == "attention"]
        before = {label: method.seen(0, label, block_index(label)) for label in attending}
        run()
        run()  # one-time work of the first step, such as merging pages, is no part of a step
        before |= {node.label: depth - GROUP * _merged(plan, node) for node in shared}
        logits = plan.logits[:1].copy()
        plan.logits[:1] = np.nan
        run_stamped()
        if not np.array_equal(logits, plan.logits[:1]):
            raise ProfileError("the step with time stamps gave other logits than the step without")
        active, seen = active_neurons(model, tokens), cells_seen(model, tokens)
        laps.clear()
        bare.clear()
        samples = race({"step": run, "stamped": run_stamped}, rule, progress)["step"]
    finally:
        engine.reset()
    stamp = float(np.median(bare))
    taken = np.zeros((len(laps), len(plan.steps)))  # [repeats, nodes]
    for call, lap in zip(plan.calls, (np.array(laps) - stamp).T, strict=True):
        taken[:, call.step] += np.maximum(TICK, lap)
    steps, threads = plan.steps, model.team.n_threads
    sizes = {"tokens": tokens, "outputs": 1}
    costs = [
        cost_of(step, sizes, depth, active.get(i, 0), seen.get(i)) for i, step in enumerate(steps)
    ]
    ceilings = bounds(steps, sizes, costs, limits, threads) if limits else [None] * len(steps)
    row = Measurement(
        bench="node",
        test="step",
        model=model.file.path.stem,
        threads=threads,
        phase="run" if tokens == 1 else "prompt",
        settings=settings(model.config, model.options.sparse),
    )
    nodes = []
    for step, column, cost, ceiling in zip(steps, taken.T, costs, ceilings, strict=True):
        op, target, variant, *weights = step.kernel.name.split("/")
        node = replace(
            row, test=op, target=target, variant=variant, format="".join(weights),
            shape=step.node.label, samples=tuple(column.tolist()), bytes=cost.bytes,
            operations=cost.operations,
        )  # fmt: skip
        nodes.append(ceiling.of(node) if ceiling else node)
    whole = together(nodes)
    return Profile(
        replace(whole, test="step", target="", variant="", format="", samples=tuple(samples),
                tokens=tokens),
        tuple(nodes),
        context=depth + tokens,
        interruptions=float(np.median(taken.sum(axis=1)) - np.median(taken, axis=0).sum()),
        overhead_seconds=stamp * len(plan.calls),
        kept={_kept_by(x, method): n for x, n in before.items() if policy},
    )  # fmt: skip


def _kept_by(label: str, method: CacheMethod) -> str:
    """The block of an attention node, or its kind of heads."""
    apart = isinstance(method, Streaming)
    return label.removesuffix(".attention") if apart else label.rpartition(".")[0]


def _merged(plan: Plan, node: Node) -> int:
    """How many merged pages the last step's first token saw in one of the blocks that share
    them."""
    packed = node.arguments["packed"]
    assert isinstance(packed, Value)
    return int(plan.array(packed)[0])


def token_ids(engine: Engine, count: int) -> list[int]:
    """A profile's tokens: random, always the same."""
    found = np.random.default_rng(0).integers(engine.model.config.vocab, size=count)
    return [int(token) for token in found]


def check(engine: Engine, tokens: int, depth: int) -> None:
    """Raise ProfileError for a step that the engine has no room for."""
    most, capacity = engine.model.limits["tokens"], engine.model.cells.capacity
    if tokens < 1 or depth < 0:
        raise ProfileError(f"want 1 token or more at depth 0 or more, got {tokens} at {depth}")
    if depth + tokens > capacity:
        raise ProfileError(
            f"{tokens} tokens at depth {depth} want {depth + tokens} cells,"
            f" the context holds {capacity}"
        )
    if tokens > most:
        raise ProfileError(f"a step takes at most {most} tokens, got {tokens}")


def empty_steps(model: Model) -> list[Measurement]:
    """Seconds of a step with empty shares, on one thread and on all of the model's: waking the
    threads, and their barriers."""
    plan = model.plan
    program = plan.idle()
    return [
        Measurement(
            bench="empty step",
            test="empty step",
            shape=f"calls={len(plan.calls)},stages={len(plan.stages)}",
            model=model.file.path.stem,
            threads=threads,
            samples=_samples(program, threads),
        )
        for threads in sorted({1, model.team.n_threads})
    ]


def _samples(program: Program, threads: int) -> tuple[float, ...]:
    samples = []
    with Team(threads) as team:
        for _ in range(EMPTY):
            started = now = time.perf_counter()
            steps = 0
            while steps < STEPS and now < started + SECONDS:
                team.run(program)
                steps += 1
                now = time.perf_counter()
            samples.append((now - started) / steps)
    return tuple(samples)


def neurons(engine: Engine, tokens: int = 1, depth: int = 128) -> dict[str, Counted]:
    """How many neurons each sparse block needs, and how good its predictors are, over the tokens of
    a profile's step and those before it.

    The engine was loaded with the pass `count_neurons`, which computes all neurons, so this run
    must not be timed. The engine's cache and counts are cleared.
    """
    model = engine.model
    check(engine, tokens, depth)
    blocks = neuron_counts(model.memory)
    if not blocks:
        return {}
    for counted in blocks.values():
        counted.clear()
    engine.reset()
    try:
        ids = token_ids(engine, depth + tokens)
        if depth:  # one by one, since the step's tokens share neurons where there is a union
            model.evaluate(ids[:depth], 0)
        model.evaluate(ids[depth:], depth)
        return {block: joined([counted]) for block, counted in blocks.items()}
    finally:
        engine.reset()
        for counted in blocks.values():
            counted.clear()


def joined(blocks: Iterable[Counted]) -> Counted:
    """The counts of all blocks' neurons as one."""
    columns = zip(*((b.predicted, b.fired, b.hits) for b in blocks), strict=True)
    return Counted(*map(np.concatenate, columns))


def timed_step(
    model: Model, tokens: Sequence[int], depth: int, outputs: Sequence[int] = (0,)
) -> float:
    """Seconds of a step of these tokens of sequence 0, which has `depth` before them; logits are
    computed for the tokens at these indices."""
    places = range(depth, depth + len(tokens))
    started = time.perf_counter()
    model.step(tokens, places, [(0,)] * len(tokens), outputs)
    seconds = time.perf_counter() - started
    model.cells.remove(0, begin=depth)
    return seconds
