"""A graph made ready: kernels chosen, every buffer placed in one arena, every argument block laid.

First allocate, then compute: after planning, a step writes its inputs and sizes and runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from engine.graph import Graph, Node, Value
from kernels.choose import Need
from kernels.cpu.packing import CACHE_LINE, aligned
from kernels.cpu.share import all_arguments, scalar_word
from kernels.cpu.team import Program
from kernels.kernel import Kernel
from reference.op import DTYPES
from reference.quantise_activations import BLOCK

Array = np.ndarray[Any, np.dtype[Any]]


def need(node: Node) -> Need:
    """What the node asks of the kernels; sizes that change between steps are left out."""
    fixed = tuple((a, d) for a, d in sorted(node.shape().items()) if isinstance(d, int))
    return Need(node.op, node.format, fixed)


@dataclass(frozen=True, slots=True)
class Step:
    """A node with its kernel, its arguments as that kernel wants them.

    `weight` names the file's tensor that the kernel streams in a packed layout, if it does.
    """

    node: Node
    kernel: Kernel
    weight: str = ""

    def reads(self) -> list[Value]:
        """The arrays its inputs are, as the kernel wants them."""
        outputs = {argument.name for argument in self.kernel.spec.outputs}
        values = values_of(self).items()
        return [v for name, v in values if isinstance(v, Value) and name not in outputs]

    @property
    def output(self) -> Value:
        value = self.node.arguments[self.kernel.spec.outputs[0].name]
        assert isinstance(value, Value)
        return value


def with_kernels(graph: Graph, chosen: Mapping[Need, Kernel]) -> list[Step]:
    """The graph's nodes with kernels; activations are quantised once for all that read them."""
    quantise = chosen.get(Need("quantise_activations"))
    steps: list[Step] = []
    quantised: dict[str, dict[str, Value]] = {}
    for node in graph.nodes:
        kernel = chosen[need(node)]
        arguments, packed = dict(node.arguments), ""
        if kernel.activations == "int8":
            x = arguments.pop("x")
            assert isinstance(x, Value)
            assert quantise is not None
            if x.name not in quantised:
                quantised[x.name] = parts = _quantised(x)
                inner = Node("quantise_activations", {"x": x, **parts}, None, f"{x.name}.int8")
                steps.append(Step(inner, quantise))
            arguments |= quantised[x.name]
        if kernel.pack:
            weight = arguments["weight"]
            assert isinstance(weight, Value)
            packed = weight.name
            arguments["weight"] = replace(weight, name=packed_name(packed, kernel))
        steps.append(Step(replace(node, arguments=arguments), kernel, packed))
    return steps


def packed_name(weight: str, kernel: Kernel) -> str:
    """What a tensor is called in the layout that a kernel streams."""
    assert kernel.pack is not None
    return f"{weight}@{kernel.pack.share.name}"


def _quantised(x: Value) -> dict[str, Value]:
    tokens, hidden = x.dims
    assert isinstance(hidden, int)

    def part(name: str, dtype: str, width: int) -> Value:
        return Value(f"{x.name}.{name}", "activation", dtype, (tokens, width))

    return {
        "q": part("q", "i8", hidden),
        "scale": part("scale", "f32", hidden // BLOCK),
        "total": part("total", "i32", hidden // BLOCK),
    }


def values_of(step: Step) -> dict[str, Value | float]:
    """Arguments by the names of the kernel's own signature."""
    names = {a.name for a in all_arguments(step.kernel.share.signature)}
    return {name: value for name, value in step.node.arguments.items() if name in names}


def place(steps: list[Step], limits: Mapping[str, int], keep: Value) -> tuple[dict[str, int], int]:
    """Offsets of the activations in the arena, and its size in bytes.

    First fit by lifetime: memory is reused as soon as the last reader has run. Steps are barriers,
    so a value read by step i frees its place for an output of step i + 1. `keep` lives to the end.
    """
    last = {
        value.name: i
        for i, step in enumerate(steps)
        for value in values_of(step).values()
        if isinstance(value, Value)
    }
    last[keep.name] = len(steps)
    offsets: dict[str, int] = {}
    live: list[tuple[int, int, int]] = []  # (begin, end, last step), sorted
    size = 0
    for i, step in enumerate(steps):
        live = [block for block in live if block[2] >= i]
        for value in values_of(step).values():
            if not isinstance(value, Value) or value.kind != "activation" or value.name in offsets:
                continue
            wanted = -(-value.bytes(limits) // CACHE_LINE) * CACHE_LINE
            begin = 0
            for other_begin, other_end, _ in live:
                if begin + wanted <= other_begin:
                    break
                begin = max(begin, other_end)
            live = sorted([*live, (begin, begin + wanted, last[value.name])])
            offsets[value.name] = begin
            size = max(size, begin + wanted)
    return offsets, size


class Plan:
    """Steps laid out in memory, ready to run.

    `arrays` holds weights, caches and inputs by name; `limits` the largest `tokens` and `outputs`.
    """

    def __init__(
        self,
        steps: list[Step],
        arrays: Mapping[str, Array],
        limits: Mapping[str, int],
        logits: Value,
    ) -> None:
        self.steps, self.limits = steps, dict(limits)
        self.offsets, self.arena_bytes = place(steps, limits, logits)
        self.arena = aligned(self.arena_bytes)
        self._arrays = dict(arrays)
        self.inputs = arrays
        self._words, self._slots, starts = self._blocks()
        blocks = [self._words[a:b] for a, b in pairwise(starts)]
        self.program = Program(list(zip((s.kernel.share for s in steps), blocks, strict=True)))
        self.logits = self.array(logits)

    def array(self, value: Value) -> Array:
        """The memory of a value at its largest size."""
        if value.kind != "activation":
            return self._arrays[value.name]
        start = self.offsets[value.name]
        memory = self.arena[start : start + value.bytes(self.limits)]
        return memory.view(DTYPES[value.dtype]).reshape(value.sizes(self.limits))

    def _blocks(self) -> tuple[Array, dict[str, Array], list[int]]:
        """All argument blocks in one array, where named sizes stand in it, where blocks start."""
        words: list[int] = []
        slots: dict[str, list[int]] = {name: [] for name in self.limits}
        starts = [0]
        for step in self.steps:
            values = values_of(step)
            for argument in all_arguments(step.kernel.share.signature):
                value = values[argument.name]
                if not isinstance(value, Value):
                    words.append(scalar_word(argument, value))
                    continue
                array = self.array(value)
                words.append(array.ctypes.data)
                packed = value.kind == "weight" and array.ndim == len(argument.axes) == 1
                sizes = array.shape if packed else value.sizes(self.limits)
                for dim, size in zip(value.dims, sizes, strict=False):
                    if isinstance(dim, str):
                        slots[dim].append(len(words))
                    words.append(size)
            starts.append(len(words))
        positions = {name: np.array(where, np.int64) for name, where in slots.items()}
        return np.array(words, np.int64), positions, starts

    def resize(self, **sizes: int) -> None:
        """Set the named sizes of the next step."""
        for name, size in sizes.items():
            self._words[self._slots[name]] = size
