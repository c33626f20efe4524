"""Assignment of a model's nodes to the GPU, and the parts of a step: consecutive nodes on one side.

Blocks are counted like llama.cpp's `-ngl`: the last N, and with N beyond their number everything
else.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from engine.graph import Node, Value
from reference.table import OPS

ALL = -1  # gpu_layers: every block and everything else
PICKED = "rows"  # the node that selects the last block's rows for the output
_BLOCK = re.compile(r"blk\.(\d+)\.")

Can = Callable[[Node], bool]


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive nodes of one side.

    takes   values of the other side that it requires gives   those of its values that the other
    side reads, and the step's result
    """

    on_gpu: bool
    nodes: tuple[Node, ...]
    takes: tuple[Value, ...]
    gives: tuple[Value, ...]


def layers_of(nodes: Sequence[Node], blocks: int) -> list[int]:
    """The block of each node; -1 before the blocks, `blocks` after them."""
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
    """The nodes, with those before the blocks marked for the CPU."""
    layers = layers_of(nodes, blocks)
    return [
        replace(node, target="cpu") if layer < 0 else node
        for node, layer in zip(nodes, layers, strict=True)
    ]


def experts_on_cpu(nodes: Sequence[Node], blocks: int, count: int) -> list[Node]:
    """The nodes, with experts of the first `count` blocks marked for the CPU: from a token's
    routing to the weighted sum."""
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
    """Whether each node is requested on the GPU."""
    layers = layers_of(nodes, blocks)
    wanted = [gpu_layers > blocks or blocks - gpu_layers <= i < blocks for i in layers]
    return [want and node.target != "cpu" for want, node in zip(wanted, nodes, strict=True)]


def assigned(
    nodes: Sequence[Node], blocks: int, gpu_layers: int, can: Can
) -> tuple[list[bool], list[str]]:
    """Whether each node runs on the GPU, and notes.

    A block with a node that the GPU cannot run (`can`) stays on the CPU.
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

    GPU work that the CPU's next part does not need becomes a part of its own, which runs in
    parallel.
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
    """How many nodes of a run must be done before the nodes after it."""
    wanted = _read(after).keys()
    return max((i for i, node in enumerate(run, 1) if _written([node]).keys() & wanted), default=0)


def _written(nodes: Iterable[Node]) -> dict[str, Value]:
    return _activations((node, output.name) for node in nodes for output in OPS[node.op].outputs)


def _read(nodes: Iterable[Node]) -> dict[str, Value]:
    return _activations((node, given.name) for node in nodes for given in OPS[node.op].inputs)


def _activations(arguments: Iterable[tuple[Node, str]]) -> dict[str, Value]:
    """The activations among these arguments of nodes, by name."""
    values = (node.arguments.get(name) for node, name in arguments)
    return {v.name: v for v in values if isinstance(v, Value) and v.kind == "activation"}
