"""engine/gpu part by part: who runs what, where it lies, what goes over, and what is refused."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from conformance.cuda.emulator import Emulator, compiler
from conformance.llama.conftest import inside
from conformance.llama.small_models import Small
from conformance.llama.test_bad_input import Assay, fault
from engine.config import ModelError
from engine.gpu.division import Whole, divide
from engine.gpu.layout import Layout, laid_out
from engine.gpu.memory import SPARE
from engine.gpu.mirror import Inputs
from engine.gpu.parts import Part, divided, layers_of, meant, placed
from engine.graph import Graph, Node, Value
from engine.model import Model
from engine.options import Options
from engine.plan import need
from kernels.certificates import Certificate, Key, Store
from kernels.choose import Chooser, Need, UncertifiedError
from kernels.cuda import current, gpu
from kernels.cuda.current import taking_the_place
from kernels.cuda.device import Buffer, DeviceError
from kernels.cuda.launch import Grid, Launch
from kernels.cuda.table import CUDA_KERNELS
from reference.op import Array

__all__ = ["inside"]
SMALL = Small(format="Q4_0", blocks=3, seed=1)
needs_compiler = pytest.mark.skipif(not compiler(), reason="no C++ compiler for the emulator")


# Parts


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Node], list[bool], Value]:
    """Nodes that each read one or two values made before, each on one of two sides."""
    graph, values = Graph(), [Value("start", "input", "f32", ("tokens", 8))]
    for i in range(draw(st.integers(1, 12))):
        x, y = (values[draw(st.integers(0, len(values) - 1))] for _ in range(2))
        values.append(graph("add", f"value {i}", x=x, y=y))
    sides = draw(st.lists(st.booleans(), min_size=len(graph.nodes), max_size=len(graph.nodes)))
    return graph.nodes, sides, values[-1]


@given(graphs())
def test_every_value_is_there_when_it_is_read(drawn: tuple[list[Node], list[bool], Value]) -> None:
    """Each side has what it made, and of the other's what was given and taken, in time."""
    nodes, sides, result = drawn
    parts = divided(nodes, sides, result)
    assert [n.label for part in parts for n in part.nodes] == [n.label for n in nodes]
    has: dict[bool, set[str]] = {True: {"start"}, False: {"start"}}
    given_over: dict[bool, set[str]] = {True: set(), False: set()}
    for part in parts:
        taken = {value.name for value in part.takes}
        assert taken <= given_over[not part.on_gpu]
        has[part.on_gpu] |= taken
        for node in part.nodes:
            read = {node.arguments[name].name for name in "xy"}  # type: ignore[union-attr]
            assert read <= has[part.on_gpu]
            has[part.on_gpu].add(node.arguments["out"].name)  # type: ignore[union-attr]
        made = {node.arguments["out"].name for node in part.nodes}  # type: ignore[union-attr]
        given_over[part.on_gpu] |= {value.name for value in part.gives}
        assert {value.name for value in part.gives} <= made
    assert result.name in given_over[True] | given_over[False]


@given(graphs())
def test_what_the_cpu_does_not_wait_for_is_a_part_of_its_own(
    drawn: tuple[list[Node], list[bool], Value],
) -> None:
    """A part of the GPU that the CPU's next one reads of ends with what it reads."""
    parts = divided(*drawn)
    for own, after in zip(parts, parts[1:], strict=False):
        if own.on_gpu and not after.on_gpu:
            taken = {value.name for value in after.takes}
            made = [node.arguments["out"].name for node in own.nodes]  # type: ignore[union-attr]
            assert made[-1] in taken or not taken & set(made)


BLOCKS = 3
LABELS = ["token_embd", "rotation", *(f"blk.{i}.{n}" for i in range(BLOCKS) for n in ("attn", "ffn")),
          "rows", "output_norm", "logits"]  # fmt: skip
NODES = [Node("add", {}, None, label) for label in LABELS]


@pytest.mark.parametrize(
    ("layers", "expected"),
    [(0, []), (1, LABELS[6:9]), (2, LABELS[4:9]), (3, LABELS[2:9]), (4, LABELS), (99, LABELS)],
)
def test_layers_are_counted_as_llama_cpp_does(layers: int, expected: list[str]) -> None:
    """The last N blocks, what picks rows of the last one with it; all else with one more."""
    there = meant(NODES, BLOCKS, layers)
    assert [node.label for node, on in zip(NODES, there, strict=True) if on] == expected
    assert layers_of(NODES, BLOCKS) == [-1, -1, 0, 0, 1, 1, 2, 2, 2, 3, 3]


def test_a_block_without_kernels_stays() -> None:
    """A node that the GPU cannot run keeps its block with the CPU, and a note says which op."""
    nodes = [replace(n, op="silu", format="Q2_K") if n.label == "blk.1.ffn" else n for n in NODES]
    there, notes = placed(nodes, BLOCKS, BLOCKS + 1, lambda node: node.op != "silu")
    assert [n.label for n, on in zip(nodes, there, strict=True) if not on] == LABELS[4:6]
    assert notes == ["1 of 3 blocks stay on the CPU: no CUDA kernel for silu Q2_K"]
    _, notes = placed(nodes, BLOCKS, BLOCKS + 1, lambda node: node.label != "logits")
    assert notes == ["the output stays on the CPU: no CUDA kernel for add"]
