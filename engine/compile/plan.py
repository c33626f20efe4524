"""A graph made ready to run: calls grouped into stages, buffers placed in one arena, argument
blocks laid out.

Allocate first, compute later: after planning, a step only writes its inputs and sizes and runs.
"""

import mmap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise
from typing import Generic, Protocol

import numpy as np

from engine.compile.arena import place
from engine.compile.stages import Call, apart, memory, stages, touched
from engine.graph import Dim, Graph, Node, Value, factors, size_of
from kernels.call import AnyKernel
from kernels.cpu.formats.packing import Packing, aligned
from kernels.cpu.runtime.sequence import Entry, nothing, sequence
from kernels.cpu.runtime.share import Share, Words, all_arguments, scalar_word
from kernels.cpu.runtime.team import Program, Team
from kernels.dispatch import K, KernelSpec
from kernels.kernel import Kernel
from kernels.knob import Values, array_of
from kernels.tuning import shape_text, starting
from reference.op import DTYPES, Argument, Array
from reference.table import OPS

SCRATCH = "scratch"  # the argument that is a kernel's scratch memory
TUNING = "tuning"  # and the one with its knobs' values
# Initial values of a kernel's knobs at a node's sizes.
Tuned = Callable[[Kernel, Mapping[str, int]], Values]


def spec_of(node: Node) -> KernelSpec:
    """What the node requires of a kernel; of sizes that change between steps only their
    multiples."""
    times = {
        axis: factors(dim)[1]
        for axis, dim in axes_of(node)
        if axis.isidentifier() and isinstance(dim, str)
    }
    several = tuple((axis, count) for axis, count in times.items() if count > 1)
    return KernelSpec(node.op, node.format, tuple(sorted(shape_of(node, {}).items())), several)


@dataclass(frozen=True, slots=True)
class PrefetchTask:
    """Work of a step that is no op, such as reading its weights: shares, each run once every thread
    has finished the previous one. `writes` names arguments."""

    shares: tuple[Share, ...]
    arguments: Mapping[str, Value | float]
    writes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Step(Generic[K]):
    """A node with its kernel, on any device, and its arguments as that kernel takes them.

    `weight` names the file's tensor that the kernel streams in a packed layout, if any; `before`
    runs before the kernel.
    """

    node: Node
    kernel: K
    weight: str = ""
    before: PrefetchTask | None = None

    @property
    def arrays(self) -> dict[str, Value]:
        """Its arrays by the names of arguments."""
        return {n: v for n, v in self.node.arguments.items() if isinstance(v, Value)}

    def reads(self) -> list[Value]:
        """The arrays of its inputs, as the kernel takes them."""
        outputs = {argument.name for argument in self.kernel.spec.outputs} | {SCRATCH}
        return [value for name, value in self.arrays.items() if name not in outputs]

    @property
    def output(self) -> Value:
        return self.arrays[self.kernel.spec.outputs[0].name]


CpuStep = Step[Kernel]


def with_kernels(graph: Graph, chosen: Mapping[KernelSpec, K]) -> list[Step[K]]:
    """The graph's nodes with kernels, and with weights in the layouts that these stream."""
    found = []
    for node in graph.nodes:
        kernel, tensor = kernel_of(node, chosen), ""
        if kernel.pack:
            weight = node.arguments["weight"]
            assert isinstance(weight, Value)
            tensor = weight.name
            packed = replace(weight, name=packed_name(tensor, kernel))
            node = replace(node, arguments={**node.arguments, "weight": packed})
        found.append(Step(node, kernel, tensor))
    return found


def kernel_of(node: Node, chosen: Mapping[KernelSpec, K]) -> K:
    """The kernel chosen for a node, or for its op regardless of sizes."""
    return chosen.get(spec_of(node)) or chosen[KernelSpec(node.op)]


def packed_name(weight: str, kernel: AnyKernel) -> str:
    """The name of a tensor in a kernel's layout."""
    pack = kernel.pack
    assert pack is not None
    return f"{weight}@{pack.share.key if isinstance(pack, Packing) else 'packed'}"


def names_in(step: CpuStep) -> set[str]:
    """Names of all values that the step touches, including its prefetch task's."""
    service = step.before.arguments.values() if step.before else ()
    own = {value.name for value in step.arrays.values()}
    return own | {value.name for value in service if isinstance(value, Value)}


def axes_of(node: Node) -> list[tuple[str, Dim]]:
    """The dimensions of a node's arrays, each with the op's name for it."""
    spec = OPS[node.op]
    return [
        (axis, dim)
        for argument in (*spec.inputs, *spec.outputs)
        if isinstance(value := node.arguments.get(argument.name), Value)
        for axis, dim in zip(argument.axes, value.dims, strict=True)
    ]


def shape_of(node: Node, sizes: Mapping[str, int]) -> dict[str, int]:
    """The op's named sizes in a step of these sizes, including factors of products such as
    kv_heads*head_dim, where they are known."""
    dims = [
        (axis, size_of(dim, sizes))
        for axis, dim in axes_of(node)
        if not isinstance(dim, str) or factors(dim)[0] in sizes
    ]
    shape: dict[str, int] = {}
    for axis, size in dims:
        if axis.isidentifier():
            shape.setdefault(axis, size)
    for axis, size in dims:
        if "*" in axis:
            unknown, known = axis.split("*")
            if known in shape:
                shape.setdefault(unknown, size // shape[known])
    return shape


def with_own(step: CpuStep, limits: Mapping[str, int]) -> CpuStep:
    """The step with its kernel's private arguments: scratch, large enough for the largest sizes,
    and the values of its knobs."""
    return with_tuning(with_scratch(step, limits))


def with_scratch(step: Step[K], limits: Mapping[str, int]) -> Step[K]:
    """The step with scratch memory for its kernel."""
    if step.kernel.scratch is None:
        return step
    node = step.node
    size = step.kernel.scratch(shape_of(node, limits))
    scratch = Value(f"{node.label}.{SCRATCH}", "activation", "f32", (size,))
    return replace(step, node=replace(node, arguments={**node.arguments, SCRATCH: scratch}))


def calls_of(steps: Sequence[CpuStep]) -> list[Call]:
    """The calls that a team runs: each step's share, its second share if the kernel has one, and
    before them the step's prefetch task."""
    found = []
    for i, step in enumerate(steps):
        if service := step.before:
            touched = ((n, v) for n, v in service.arguments.items() if n in service.writes)
            changes = frozenset(memory(value) for _, value in touched if isinstance(value, Value))
            given = service.arguments, changes
            found += [Call(i, share, *given, by_all=True) for share in service.shares]
        outputs = {argument.name for argument in step.kernel.spec.outputs} | {SCRATCH}
        writes = frozenset(memory(v) for n, v in step.arrays.items() if n in outputs)
        splits = "" if step.kernel.then else step.kernel.splits
        for share in step.kernel.shares:
            names = [argument.name for argument in all_arguments(share.signature)]
            arguments = {name: step.node.arguments[name] for name in names}
            found.append(Call(i, share, arguments, writes, splits))
    return found


def with_tuning(step: CpuStep) -> CpuStep:
    """The step with the values of its kernel's knobs, shared by nodes of the same kernel and
    sizes."""
    if not step.kernel.knobs:
        return step
    name = f"{TUNING} of {step.kernel.name} {shape_text(shape_of(step.node, {}))}"
    value = Value(name, "input", "i64", (len(step.kernel.knobs),))
    return replace(step, node=replace(step.node, arguments={**step.node.arguments, TUNING: value}))


class Stream(Protocol):
    """Weights read from disk while steps run (engine/offload/stream.py)."""

    @property
    def names(self) -> Sequence[str]:
        """The weights' names, in the order of a step."""

    def turn(self, used: int, wanted: int) -> Entry:
        """The wait of one stage: so many of the step's weights have been used; wait until so many
        have arrived."""


def stages_of(
    steps: Sequence[CpuStep], streamed: Sequence[str] = (), pauses: Sequence[int] = ()
) -> list[list[Call]]:
    """The calls of steps grouped by barriers; a stage uses at most one streamed weight, and the
    steps numbered in `pauses` begin new stages."""
    calls, bounds = calls_of(steps), pairwise([0, *pauses, len(steps)])
    parts = [stages(c for c in calls if first <= c.step < end) for first, end in bounds]
    return apart(chain(*parts), streamed)


def turns(
    stages: Sequence[Sequence[Call]], stream: Stream | None
) -> tuple[list[list[Entry]], list[Entry]]:
    """For each stage, the wait for its streamed weight; and the call that ends a step."""
    if not stream or not stream.names:
        return [[] for _ in stages], []
    found: list[list[Entry]] = []
    streamed, used = set(stream.names), 0
    for stage in stages:
        wants = any(value.name in streamed for call in stage for value in call.values())
        found.append([stream.turn(used, used + 1)] if wants else [])
        used += wants
    return found, [stream.turn(used, used)]


def _in_stages(
    stages: Sequence[Sequence[Call]], entries: Iterable[Entry], stream: Stream | None
) -> Program:
    """The program's entries: for each stage, one for each call and one for the wait."""
    waiting, found, tables, by_all = iter(entries), list[Entry](), list[Words](), list[bool]()
    before, end = turns(stages, stream)
    for stage, turn in zip(stages, before, strict=True):
        several = [*turn, *islice(waiting, len(stage))]
        if len(several) > 1:
            entry, calls = sequence(several)
            tables.append(calls)
            several = [entry]
        found += several
        by_all += [bool(turn) or any(call.by_all for call in stage)] * len(several)
    return Program([*found, *end], tables, [*by_all, *[True] * len(end)])


class Plan:
    """Steps laid out in memory, ready for a team to run.

    `arrays` holds weights, caches and inputs by name; `limits` the largest `tokens` and `outputs`.
    The contents of `logits` and `hidden` stay valid until the next step.

    `stages` are the `calls` of all steps with barriers between, and `program` runs them; `entries`
    are the same calls separately. Weights of a `stream` are waited for before the stage that needs
    them. Between `pauses` (indices into `steps`) other devices may run: as one of several, a plan
    is a Side (engine/gpu/hybrid.py), whose boundary values are host memory. `tuned` gives initial
    values of a kernel's knobs at a node's sizes; `knobs` holds the values, which may be changed
    between steps.
    """

    def __init__(
        self,
        steps: Sequence[CpuStep],
        arrays: Mapping[str, Array],
        limits: Mapping[str, int],
        logits: Value,
        team: Team,
        stream: Stream | None = None,
        pauses: Sequence[int] = (),
        tuned: Tuned = lambda kernel, _: starting(kernel),
        hidden: Value | None = None,
    ) -> None:
        self.steps, self.limits, self._team = list[CpuStep](), dict(limits), team
        self.knobs: dict[str, Array] = {}
        for step in steps:
            self.steps.append(with_own(step, limits))
            if value := self.steps[-1].arrays.get(TUNING):
                values = tuned(step.kernel, shape_of(step.node, {}))
                self.knobs.setdefault(value.name, array_of(step.kernel.knobs, values))
        self.stream, self.greedy = stream, None
        self.stages = stages_of(self.steps, stream.names if stream else (), pauses)
        self.calls = [call for stage in self.stages for call in stage]
        kept = [logits, hidden] if hidden else [logits]
        self.offsets, self.arena_bytes = place(touched(self.stages), limits, kept)
        self.arena = aligned(self.arena_bytes)
        self._arrays = {**arrays, **self.knobs}
        self.inputs = arrays
        self._scalars: dict[tuple[str, str], tuple[int, Argument]] = {}
        self._words, self._slots, starts = self._blocks()
        blocks = [self._words[a:b] for a, b in pairwise(starts)]
        self.entries = [(c.share, block) for c, block in zip(self.calls, blocks, strict=True)]
        self.program = _in_stages(self.stages, self.entries, stream)
        bounds = pairwise([0, *pauses, len(steps)])
        self._parts = [self._between(*two) for two in bounds] if pauses else [self.program]
        self.logits = self.array(logits)
        self.hidden = self.array(hidden) if hidden else None

    def touch(self) -> None:
        """Fault in all memory that steps will use: activations, caches, pages of the mapped
        file."""
        for array in (self.arena, *self.inputs.values()):
            pages = array.reshape(-1).view(np.uint8)[:: mmap.PAGESIZE]
            if array.flags.writeable:
                pages[:] = pages
            else:
                pages.max(initial=0)

    def idle(self) -> Program:
        """The program with empty shares: the cost of waking a team and of its barriers."""
        return _in_stages(self.stages, ((nothing, block) for _, block in self.entries), None)

    def plan_for(self, tokens: int) -> "Plan":  # noqa: ARG002  of an Executable
        return self

    def _between(self, first: int, end: int) -> Program:
        """The program of the steps from one pause to the next."""
        own = range(first, end)
        calls = zip(self.calls, self.entries, strict=True)
        entries = [entry for call, entry in calls if call.step in own]
        return _in_stages([s for s in self.stages if s[0].step in own], entries, None)

    def run(self, part: int | None = None) -> None:
        """Run one step with the current sizes and inputs; or the part of it between two pauses."""
        self._team.run(self.program if part is None else self._parts[part])

    def write(self, value: Value, array: Array) -> None:
        """Nothing to copy: it is host memory."""

    def ask(self, value: Value, array: Array) -> Callable[[], None]:  # noqa: ARG002
        """Nothing to copy: it is host memory, complete already."""
        return lambda: None

    def array(self, value: Value) -> Array:
        """The memory of a value at its largest size."""
        if value.kind != "activation":
            return self._arrays[value.name]
        start = self.offsets[value.name]
        memory = self.arena[start : start + value.bytes(self.limits)]
        return memory.view(DTYPES[value.dtype]).reshape(value.sizes(self.limits))

    def _blocks(self) -> tuple[Array, dict[str, Array], list[int]]:
        """All argument blocks in one array, the positions and factors of named sizes in it, and
        where each block begins."""
        words: list[int] = []
        slots: dict[str, list[tuple[int, int]]] = {name: [] for name in self.limits}
        starts = [0]
        for call in self.calls:
            for argument in all_arguments(call.share.signature):
                value = call.arguments[argument.name]
                if not isinstance(value, Value):
                    label = self.steps[call.step].node.label
                    self._scalars[label, argument.name] = len(words), argument
                    words.append(scalar_word(argument, value))
                    continue
                array = self.array(value)
                words.append(array.ctypes.data)
                # a packed weight's sizes are its own
                sizes = array.shape if value.kind == "weight" else value.sizes(self.limits)
                for dim, size in zip(value.dims, sizes, strict=False):
                    if isinstance(dim, str):
                        name, times = factors(dim)
                        slots[name].append((len(words), times))
                    words.append(size)
            starts.append(len(words))
        positions = {n: np.array(where, np.int64).reshape(-1, 2).T for n, where in slots.items()}
        return np.array(words, np.int64), positions, starts

    def resize(self, **sizes: int) -> None:
        """Set the named sizes of the next step."""
        for name, size in sizes.items():
            where, times = self._slots[name]
            self._words[where] = size * times

    def set(self, label: str, name: str, value: float) -> None:
        """Set a scalar of a node, if it is here, from the next step on."""
        if (label, name) in self._scalars:
            at, argument = self._scalars[label, name]
            self._words[at] = scalar_word(argument, value)
