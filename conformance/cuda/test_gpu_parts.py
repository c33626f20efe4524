"""engine/gpu: the partition between devices, and which values are copied."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from conformance.support.on_gpu import Watched
from engine.gpu.mirror import Inputs
from engine.gpu.parts import assigned, split_at_devices
from engine.graph import Graph, Node, Value


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Node], list[bool], Value]:
    """Nodes that each read one or two earlier values, each on one of two devices."""
    graph, values = Graph(), [Value("start", "input", "f32", ("tokens", 8))]
    for i in range(draw(st.integers(1, 12))):
        x, y = (values[draw(st.integers(0, len(values) - 1))] for _ in range(2))
        values.append(graph("add", f"value {i}", x=x, y=y))
    sides = draw(st.lists(st.booleans(), min_size=len(graph.nodes), max_size=len(graph.nodes)))
    return graph.nodes, sides, values[-1]


@given(graphs())
def test_values_are_copied_before_they_are_read(drawn):
    """Each device has its own values and, in time, those of the other one that were copied."""
    nodes, sides, result = drawn
    parts = split_at_devices(nodes, sides, result)
    assert [n.label for part in parts for n in part.nodes] == [n.label for n in nodes]
    has: dict[bool, set[str]] = {True: {"start"}, False: {"start"}}
    given_over: dict[bool, set[str]] = {True: set(), False: set()}
    for part in parts:
        taken = {value.name for value in part.takes}
        assert taken <= given_over[not part.on_gpu]
        has[part.on_gpu] |= taken
        for node in part.nodes:
            read = {node.arguments[name].name for name in "xy"}
            assert read <= has[part.on_gpu]
            has[part.on_gpu].add(node.arguments["out"].name)
        made = {node.arguments["out"].name for node in part.nodes}
        given_over[part.on_gpu] |= {value.name for value in part.gives}
        assert {value.name for value in part.gives} <= made
    assert result.name in given_over[True] | given_over[False]


@given(graphs())
def test_gpu_parts_end_where_the_cpu_reads(drawn):
    """A GPU part that the CPU's next one reads ends with the node that it reads."""
    parts = split_at_devices(*drawn)
    for own, after in pairwise(parts):
        if own.on_gpu and not after.on_gpu:
            taken = {value.name for value in after.takes}
            made = [node.arguments["out"].name for node in own.nodes]
            assert made[-1] in taken or not taken & set(made)


BLOCKS = 3
OF_BLOCKS = [f"blk.{i}.{name}" for i in range(BLOCKS) for name in ("attn", "ffn")]
LABELS = ["token_embd", "rotation", *OF_BLOCKS, "rows", "output_norm", "logits"]
NODES = [Node("add", {}, None, label) for label in LABELS]


def test_blocks_without_cuda_kernels_stay_on_the_cpu():
    """A node without a CUDA kernel keeps its block on the CPU, and a note names the op."""
    nodes = [replace(n, op="silu", format="Q2_K") if n.label == "blk.1.ffn" else n for n in NODES]
    there, notes = assigned(nodes, BLOCKS, BLOCKS + 1, lambda node: node.op != "silu")
    assert [n.label for n, on in zip(nodes, there, strict=True) if not on] == LABELS[4:6]
    assert notes == ["1 of 3 blocks stay on the CPU: no CUDA kernel for silu Q2_K"]
    _, notes = assigned(nodes, BLOCKS, BLOCKS + 1, lambda node: node.label != "logits")
    assert notes == ["the output stays on the CPU: no CUDA kernel for add"]


SHAPES = {"tokens": (8,), "positions": (8,), "spans": (8, 3), "lists": (3, 50),
          "cell_positions": (50,)}  # fmt: skip


@given(seed=st.integers(0, 2**32 - 1), steps=st.integers(1, 8))
def test_step_inputs_are_uploaded(seed, steps):
    """Lists as far as a step's tokens see them, cell positions and everything new."""
    rng, device = np.random.default_rng(seed), Watched()
    inputs = Inputs(device, {name: np.zeros(shape, np.int32) for name, shape in SHAPES.items()})
    for _ in range(steps):
        tokens = int(rng.integers(1, 9))
        for array in inputs.host.values():
            chosen = rng.random(array.shape) < 0.1
            array[chosen] = rng.integers(0, 100, int(chosen.sum()))
        inputs.host["spans"][:tokens, 0] = rng.integers(0, 3, tokens)
        inputs.send(tokens)
        for name, array in inputs.host.items():
            there = np.empty_like(array)
            device.read(inputs.buffers[name], there)
            seen = np.unique(inputs.host["spans"][:tokens, 0]) if name == "lists" else slice(None)
            assert_array_equal(there[seen], array[seen])


def test_only_changed_inputs_are_copied():
    """One more token copies a step's small inputs, its list entry and its cell's position."""
    device = Watched()
    inputs = Inputs(device, {name: np.zeros(shape, np.int32) for name, shape in SHAPES.items()})
    inputs.send(1)
    device.written.clear()
    inputs.host["lists"][0, 17] = 5
    inputs.host["cell_positions"][5] = 17
    inputs.send(1)
    fresh = sum(-(-4 * int(np.prod(SHAPES[n])) // 256) * 256 for n in SHAPES if n[0] in "tps")
    assert device.written == [fresh, 4, 4]
