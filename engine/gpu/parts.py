"""Which nodes of a model run on the GPU, and the parts of a step: what one side runs in a row.

Blocks are counted as llama.cpp's `-ngl` does: the last N, and with N beyond their number all else.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from engine.graph import Node, Value
from reference.table import OPS

ALL = -1  # gpu_layers: every block and all else
PICKED = "rows"  # the node that leaves of the last block what the output wants
_BLOCK = re.compile(r"blk\.(\d+)\.")

Can = Callable[[Node], bool]


@dataclass(frozen=True, slots=True)
class Part:
    """Nodes that one side runs in a row.

    takes   values of the other side that have to be there before
    gives   of the values it makes those that the other side reads, and the step's result
    """

    on_gpu: bool
    nodes: tuple[Node, ...]
    takes: tuple[Value, ...]
    gives: tuple[Value, ...]


def layers_of(nodes: Sequence[Node], blocks: int) -> list[int]:
    """The block of each node; -1 of what comes before them, `blocks` of what comes after."""
    layers: list[int] = []
    for node in nodes:
        if match := _BLOCK.match(node.label):
            layers.append(int(match[1]))
        elif node.label == PICKED:
            layers.append(blocks - 1)
        else:
            layers.append(blocks if layers and layers[-1] >= blocks - 1 else -1)
    return layers


def input_on_cpu(nodes: Sequence[Node], blocks: int) -> list[Node]:
    """The nodes, those that come before all blocks for the CPU."""
    layers = layers_of(nodes, blocks)
    return [
        replace(node, target="cpu") if layer < 0 else node
        for node, layer in zip(nodes, layers, strict=True)
    ]


def experts_on_cpu(nodes: Sequence[Node], blocks: int, count: int) -> list[Node]:
    """The nodes, those of experts of the first `count` blocks for the CPU: the choice of a token's
    experts, and what is made of that up to their sum."""
    layers, after = layers_of(nodes, blocks), set[str]()
    found = []
    for node, layer in zip(nodes, layers, strict=True):
        chooses, sums = (node.op == op for op in ("choose_experts", "sum_experts"))
        if layer < count and (chooses or _read([node]).keys() & after):
            after = set() if sums else after | _written([node]).keys()
            node = replace(node, target="cpu")
        found.append(node)
    return found


def asked_of_gpu(nodes: Sequence[Node], blocks: int, gpu_layers: int) -> list[bool]:
    """Whether each node is meant for the GPU."""
    layers = layers_of(nodes, blocks)
    wanted = [gpu_layers > blocks or blocks - gpu_layers <= i < blocks for i in layers]
    return [want and node.target != "cpu" for want, node in zip(wanted, nodes, strict=True)]


def assigned(
    nodes: Sequence[Node], blocks: int, gpu_layers: int, can: Can
) -> tuple[list[bool], list[str]]:
    """Whether each node runs on the GPU, and notes.

    A block of which the GPU `can` not run every node stays on the CPU.
    """
    layers = layers_of(nodes, blocks)
    wanted = asked_of_gpu(nodes, blocks, gpu_layers)
    stay: dict[int, str] = {}
    for node, layer, want in zip(nodes, layers, wanted, strict=True):
        if want and not can(node):
            op = f"{node.op} {node.format}" if node.format else node.op
            stay.setdefault(layer, op)
    there = [w and layer not in stay for w, layer in zip(wanted, layers, strict=True)]
    return there, _notes(stay, blocks)


def _notes(stay: Mapping[int, str], blocks: int) -> list[str]:
    names = {-1: "the embedding", blocks: "the output"}
    found = [
        f"{name} stays on the CPU: no CUDA kernel for {stay[layer]}"
        for layer, name in names.items()
        if layer in stay
    ]
    for op in dict.fromkeys(op for layer, op in stay.items() if layer not in names):
        count = sum(own == op for layer, own in stay.items() if layer not in names)
        found.append(f"{count} of {blocks} blocks stay on the CPU: no CUDA kernel for {op}")
    return found


def split_at_devices(nodes: Sequence[Node], on_gpu: Sequence[bool], result: Value) -> list[Part]:
    """The parts of a step, in order; `result` is read on the CPU's side at the end.

    What the GPU does not have to have done for the CPU's next part is a part of its own, which runs
    beside that.
    """
    runs = [
        (there, [node for node, _ in run])
        for there, run in groupby(zip(nodes, on_gpu, strict=True), key=lambda pair: pair[1])
    ]
    cut: list[tuple[bool, list[Node]]] = []
    for i, (there, run) in enumerate(runs):
        after = runs[i + 1][1] if i + 1 < len(runs) else []
        end = _last_read(run, after) if there and after else len(run)
        cut += [(there, part) for part in (run[:end], run[end:]) if part]
    made = [_written(part) for _, part in cut]
    read = [_read(part).keys() for _, part in cut]
    there_already: set[str] = set()
    parts = []
    for i, (there, part) in enumerate(cut):
        others = [j for j, (side, _) in enumerate(cut) if side != there]
        before = {n: v for j in others if j < i for n, v in made[j].items()}
        takes = {n: v for n, v in before.items() if n in read[i]}
        if there:
            takes = {n: v for n, v in takes.items() if n not in there_already}
            there_already |= takes.keys()
        wanted = {result.name}.union(*(read[j] for j in others))
        gives = [value for name, value in made[i].items() if name in wanted]
        parts.append(Part(there, tuple(part), tuple(takes.values()), tuple(gives)))
    return parts


def _last_read(run: Sequence[Node], after: Sequence[Node]) -> int:
    """How many nodes of a run have to be done before those that come after it."""
    wanted = _read(after).keys()
    return max((i for i, node in enumerate(run, 1) if _written([node]).keys() & wanted), default=0)


def _written(nodes: Iterable[Node]) -> dict[str, Value]:
    return _activations((node, output.name) for node in nodes for output in OPS[node.op].outputs)


def _read(nodes: Iterable[Node]) -> dict[str, Value]:
    return _activations((node, given.name) for node in nodes for given in OPS[node.op].inputs)


def _activations(arguments: Iterable[tuple[Node, str]]) -> dict[str, Value]:
    """Of these arguments of nodes the arrays that are activations, by name."""
    values = (node.arguments.get(name) for node, name in arguments)
    return {v.name: v for v in values if isinstance(v, Value) and v.kind == "activation"}
