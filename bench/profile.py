"""Where the time of a step goes: seconds, GB/s and share of the machine's limit, node by node.

The plan's own entries run on the engine's own team, with a time stamp after each (bench/clock.py),
so each node is a stage of its own. Taking turns with it, the step runs as the engine runs it,
without stamps: what its nodes leave of that is the remainder. It is Python before and after and
waking the team, less the barriers that nodes of one stage save, so it may be negative.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from bench.clock import Seconds, Stamped
from bench.limits import Limit, Limits
from bench.node_cost import active_neurons, bounds, cost_of
from bench.results import Measurement
from bench.timing import Rule, race
from engine.engine import Engine
from engine.sparsity import settings

RULE = Rule(least=5, error=0.01, cap_seconds=10)
TICK = 1e-9  # seconds, the unit of the clock


class ProfileError(ValueError):
    """A step that cannot be profiled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Seconds, and what had to be done in them.

    `bytes` and `operations` are the least that the op's cost asks for, `bound` is the machine's
    limit for them (None where no limits were given).
    """

    op: str
    kernel: str
    seconds: float
    bytes: float
    operations: float
    bound: Limit | None

    @property
    def gb_per_second(self) -> float:
        return self.bytes / self.seconds / 1e9

    @property
    def gflop_per_second(self) -> float:
        return self.operations / self.seconds / 1e9

    @property
    def limit(self) -> str:
        """What binds it, e.g. a level of memory; "" where no limits were given."""
        return self.bound.name if self.bound else ""

    @property
    def share(self) -> float | None:
        """The limit's seconds over its own: 1 is as fast as the machine can."""
        return self.bound.seconds / self.seconds if self.bound else None

    @property
    def reached(self) -> float | None:
        """The share as pages tell it: what a probe's spread explains is all that there is."""
        return self.share if self.share is None or self.rejected else min(1.0, self.share)

    @property
    def rejected(self) -> bool:
        """Faster than the machine can: the op's cost, the limit or the clock is wrong."""
        return self.bound is not None and self.bound.seconds > self.seconds * (
            1 + self.bound.spread
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTime(Work):
    """One node of a step; its seconds, the median of `samples`, hold a barrier of its own, which in
    the engine the nodes of a stage share."""

    node: str
    samples: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTime(Work):
    """The nodes of a step that one kernel does, together."""

    calls: int


@dataclass(frozen=True, slots=True)
class Profile:
    """A step of `tokens` tokens, the last of which sees `context` cells; `settings` as a
    measurement has them.

    All seconds are medians: of the step without stamps (`samples`), and of each node.
    `overhead_seconds` is what all stamps cost, which is in neither. `interruptions`: a node's
    median leaves out what seldom strikes that node, though something strikes every step. It is
    the median of the nodes together less the sum of their medians: what other programs took.
    """

    model: str
    settings: str
    tokens: int
    context: int
    threads: int
    samples: tuple[float, ...]
    nodes: tuple[NodeTime, ...]
    interruptions: float
    overhead_seconds: float

    @property
    def step_seconds(self) -> float:
        return float(np.median(self.samples))

    @property
    def remainder(self) -> float:
        """Seconds of the step that are in no node, interruptions among them."""
        return self.step_seconds - sum(node.seconds for node in self.nodes)

    def by_op(self) -> list[OpTime]:
        """The nodes summed by op and kernel, the longest first."""
        groups: dict[tuple[str, str], list[NodeTime]] = {}
        for node in self.nodes:
            groups.setdefault((node.op, node.kernel), []).append(node)
        rows = [
            OpTime(
                op=op,
                kernel=kernel,
                seconds=sum(n.seconds for n in nodes),
                bytes=sum(n.bytes for n in nodes),
                operations=sum(n.operations for n in nodes),
                bound=_together([n.bound for n in nodes if n.bound]),
                calls=len(nodes),
            )
            for (op, kernel), nodes in groups.items()
        ]
        return sorted(rows, key=lambda row: -row.seconds)

    def rejected(self) -> list[NodeTime]:
        """Nodes faster than the machine can."""
        return [node for node in self.nodes if node.rejected]


def _together(bounds: Sequence[Limit]) -> Limit | None:
    """Limits one after the other, under the name of what binds longest."""
    if not bounds:
        return None
    seconds: dict[str, float] = {}
    for bound in bounds:
        seconds[bound.name] = seconds.get(bound.name, 0.0) + bound.seconds
    name = max(seconds, key=lambda name: seconds[name])
    return Limit(name, sum(seconds.values()), max(b.spread for b in bounds))


def profile(
    engine: Engine,
    tokens: int = 1,
    depth: int = 128,
    rule: Rule = RULE,
    limits: Limits | None = None,
    watch: Callable[[int], None] | None = None,
) -> Profile:
    """Time a step of `tokens` tokens of one sequence that has `depth` already, one output.

    `watch` is told how many repeats are done, at first none. The engine's cache is emptied.
    """
    model = engine.model
    check(engine, tokens, depth)
    if watch:
        watch(0)
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
            model.evaluate(ids[:depth], 0)
        run()
        logits = plan.logits[:1].copy()
        plan.logits[:1] = np.nan
        run_stamped()
        if not np.array_equal(logits, plan.logits[:1]):
            raise ProfileError("the step with time stamps gave other logits than the step without")
        active = active_neurons(model, tokens)
        laps.clear()
        bare.clear()
        samples = race({"step": run, "stamped": run_stamped}, rule, watch)["step"]
    finally:
        engine.reset()
    stamp = float(np.median(bare))
    taken = np.zeros((len(laps), len(plan.steps)))  # [repeats, nodes]
    for call, lap in zip(plan.calls, (np.array(laps) - stamp).T, strict=True):
        taken[:, call.step] += np.maximum(TICK, lap)
    each = np.median(taken, axis=0)
    steps, threads = plan.steps, model.team.n_threads
    sizes = {"tokens": tokens, "outputs": 1}
    costs = [cost_of(s, sizes, depth, active.get(i, 0)) for i, s in enumerate(steps)]
    ceilings = bounds(steps, sizes, costs, limits, threads) if limits else [None] * len(steps)
    nodes = [
        NodeTime(
            node=step.node.label,
            op=step.node.op,
            kernel=step.kernel.name,
            seconds=float(seconds),
            samples=tuple(column.tolist()),
            bytes=cost.bytes,
            operations=cost.operations,
            bound=ceiling,
        )
        for step, seconds, column, cost, ceiling in zip(
            steps, each, taken.T, costs, ceilings, strict=True
        )
    ]
    return Profile(
        model=model.file.path.stem,
        settings=settings(model.config, model.options.sparse),
        tokens=tokens,
        context=depth + tokens,
        threads=threads,
        samples=tuple(samples),
        nodes=tuple(nodes),
        interruptions=float(np.median(taken.sum(axis=1)) - each.sum()),
        overhead_seconds=stamp * len(plan.calls),
    )


def measurements(found: Profile) -> list[Measurement]:
    """The profile as results: the step, each of its nodes, and what is in no node."""
    bound = _together([node.bound for node in found.nodes if node.bound])
    row = partial(
        Measurement,
        bench="node",
        model=found.model,
        threads=found.threads,
        phase="run" if found.tokens == 1 else "prompt",
        settings=found.settings,
    )
    rows = [
        row(
            test="step",
            samples=found.samples,
            tokens=found.tokens,
            bytes=sum(node.bytes for node in found.nodes),
            operations=sum(node.operations for node in found.nodes),
            limit=bound.name if bound else "",
            limit_seconds=bound.seconds if bound else 0.0,
            limit_spread=bound.spread if bound else 0.0,
        ),
        row(test="remainder", samples=(max(0.0, found.remainder),)),
    ]
    for node in found.nodes:
        op, target, variant, *weights = node.kernel.split("/")
        bound = node.bound
        rows.append(
            row(
                test=op,
                target=target,
                variant=variant,
                format="".join(weights),
                shape=node.node,
                samples=node.samples,
                bytes=node.bytes,
                operations=node.operations,
                limit=node.limit,
                limit_seconds=bound.seconds if bound else 0.0,
                limit_spread=bound.spread if bound else 0.0,
            )
        )
    return rows


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
