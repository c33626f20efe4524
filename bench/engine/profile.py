"""Where the time of a step goes: seconds, GB/s and share of the machine's limit, node by node.

The plan's own entries run on the engine's own team, with a time stamp after each
(bench/machine/clock.py), so each node is a stage of its own. Taking turns with it, the step runs
as the engine runs it, without stamps: what its nodes leave of that is the remainder. It is Python
before and after and waking the team, less the barriers that nodes of one stage save, so it may be
negative.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.engine.node_cost import active_neurons, bounds, cells_seen, cost_of
from bench.machine.clock import Seconds, Stamped
from bench.machine.limits import Limits
from bench.race.results import Measurement
from bench.race.timing import Rule, race
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
EMPTY = 9  # samples of a step in which no node does anything,
STEPS = 200  # each the mean of so many,
SECONDS = 0.05  # or of those that fit in here: threads that share a core are slow to meet


class ProfileError(ValueError):
    """A step that cannot be profiled."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A step of `tokens` tokens, the last of which sees `context` cells: the rows of the `step`
    without stamps and of its `nodes`, whose seconds hold a barrier of their own, which in the
    engine the nodes of a stage share. `kept` has the cells that blocks kept before the step, or
    kinds of heads in them, where a policy chooses, or has blocks share the others.

    `overhead_seconds` is what all stamps cost, which is in neither. `interruptions`: a node's
    median leaves out what seldom strikes that node, though something strikes every step. It is
    the median of the nodes together less the sum of their medians: what other programs took.
    """

    step: Measurement
    nodes: tuple[Measurement, ...]
    context: int
    interruptions: float
    overhead_seconds: float
    kept: Mapping[str, int]

    @property
    def remainder(self) -> float:
        """Seconds of the step that are in no node, interruptions among them."""
        return self.step.median - sum(node.median for node in self.nodes)

    def by_op(self) -> list[tuple[int, Measurement]]:
        """The nodes that one kernel does, together, the longest first: how many, and their sum."""
        groups: dict[str, list[Measurement]] = {}
        for node in self.nodes:
            groups.setdefault(node.kernel_name, []).append(node)
        rows = [(len(nodes), together(nodes)) for nodes in groups.values()]
        return sorted(rows, key=lambda row: -row[1].median)

    def rejected(self) -> list[Measurement]:
        """Nodes faster than the machine can."""
        return [node for node in self.nodes if node.impossible]

    def measurements(self) -> list[Measurement]:
        """As results: the step, what is in no node, and each of its nodes."""
        rest = replace(
            self.step, test="remainder", samples=(max(0.0, self.remainder),), tokens=0, bytes=0.0,
            operations=0.0, limit="", limit_seconds=0.0, limit_spread=0.0,
        )  # fmt: skip
        return [self.step, rest, *self.nodes]


def together(nodes: Sequence[Measurement]) -> Measurement:
    """One after the other, under the limit that binds longest."""
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
    """Time a step of `tokens` tokens of one sequence that has `depth` already, one output.

    What a policy does not keep of these is evicted before. `progress` is told how many repeats are
    done, at first none. The engine's cache is emptied.
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
        """Its inputs are those of the last real step, whose cells are still in place."""
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
        run()  # what the first one had to do once, such as merging pages, is no part of a step
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
    """The block of a node that attends, or what kind of its heads does."""
    apart = isinstance(method, Streaming)
    return label.removesuffix(".attention") if apart else label.rpartition(".")[0]


def _merged(plan: Plan, node: Node) -> int:
    """How many pages that blocks share the first token of the last step saw in one of them."""
    packed = node.arguments["packed"]
    assert isinstance(packed, Value)
    return int(plan.array(packed)[0])


def token_ids(engine: Engine, count: int) -> list[int]:
    """The tokens that a profile is of: random, always the same."""
    found = np.random.default_rng(0).integers(engine.model.config.vocab, size=count)
    return [int(token) for token in found]


def check(engine: Engine, tokens: int, depth: int) -> None:
    """ProfileError for a step that the engine has no room for."""
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
    """Seconds of a step whose shares do nothing, on one thread and on all of the model's: waking
    the threads, and their barriers."""
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
    """How many neurons each sparse block needs, and how good its predictors are, over the very
    tokens of a profile's step and those before it.

    The engine was loaded with the pass `count_neurons`. What fires is looked for among all neurons,
    so this is no run to be timed. The engine's cache and counts are emptied.
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
        if depth:  # on its own, since the step's tokens share neurons where there is a union
            model.evaluate(ids[:depth], 0)
        model.evaluate(ids[depth:], depth)
        return {block: joined([counted]) for block, counted in blocks.items()}
    finally:
        engine.reset()
        for counted in blocks.values():
            counted.clear()


def joined(blocks: Iterable[Counted]) -> Counted:
    """The neurons of all blocks, with counts of their own."""
    columns = zip(*((b.predicted, b.fired, b.hits) for b in blocks), strict=True)
    return Counted(*map(np.concatenate, columns))
