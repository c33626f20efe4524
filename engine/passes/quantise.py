"""A pass that quantises activations to eight bits, once for all nodes that read them so."""

from collections.abc import Mapping
from dataclasses import replace

from engine.compile.plan import kernel_of
from engine.graph import Graph, Node, Value
from engine.passes import Memory, Pass
from kernels.dispatch import K, KernelSpec
from reference.quantise_activations import BLOCK, QUANTISING


def quantise(chosen: Mapping[KernelSpec, K]) -> Pass:
    """The pass for nodes with these kernels: those whose kernel reads eight bits take q, scale and
    total [tokens, ...] in place of x, made by a node before the first of them."""

    def apply(graph: Graph, memory: Memory) -> tuple[Graph, Memory]:
        found, made = Graph(), dict[str, dict[str, Value]]()
        for node in graph.nodes:
            kernel = kernel_of(node, chosen)
            if op := QUANTISING.get(kernel.activations):
                arguments = dict(node.arguments)
                x = arguments.pop("x")
                assert isinstance(x, Value)
                label = f"{x.name}.{kernel.activations}"
                if label not in made:
                    made[label] = parts = _parts(x, label)
                    found.nodes.append(Node(op, {"x": x, **parts}, label=label))
                node = replace(node, arguments=arguments | made[label])
            found.nodes.append(node)
        return found, memory

    return apply


def _parts(x: Value, label: str) -> dict[str, Value]:
    tokens, hidden = x.dims
    assert isinstance(hidden, int)
    widths = {
        "q": ("i8", hidden),
        "scale": ("f32", hidden // BLOCK),
        "total": ("i32", hidden // BLOCK),
    }
    return {
        name: Value(f"{label}.{name}", "activation", dtype, (tokens, width))
        for name, (dtype, width) in widths.items()
    }
