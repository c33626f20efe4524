"""What is measured on a GPU: ops at the sizes of Llama-2-7B, on bench/ops/workload.py's inputs.

Of outputs with many tokens, rows or heads a few are enough to check.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bench.ops.workload import MAKERS
from data.shapes import ModelShape
from reference.formats import FORMATS
from reference.op import Arguments, Array, Case, Cost
from reference.table import OPS

CHECKED, ROWS = 8, 64  # tokens and rows, where there are many
Outputs = dict[str, Array]


@dataclass(frozen=True)
class OpCase:
    """An op at a size. `test` is what the measurement is called, `cold` the arrays that no cache
    may hold; `some` says how much of an input or output is checked, of others all is."""

    test: str
    op: str
    format: str
    shape: Mapping[str, int]
    cold: Sequence[str]
    some: Mapping[str, tuple[slice, ...]]

    @cached_property
    def inputs(self) -> Arguments:
        """Made when first asked for, since weights are large."""
        return MAKERS[self.op](Case(dict(self.shape), format=self.format))

    @property
    def cost(self) -> Cost:
        """What a run must move and do."""
        return OPS[self.op].cost(self.shape, self.format)

    @property
    def sizes(self) -> str:
        """tokens=1,hidden=4096,out=4096"""
        return ",".join(f"{axis}={size}" for axis, size in self.shape.items())

    def part(self, inputs: Arguments, outputs: Outputs) -> tuple[Arguments, Outputs]:
        """What is checked of these."""
        few = {name: inputs[name][where] for name, where in self.some.items() if name in inputs}
        whole = {name: np.ascontiguousarray(part) for name, part in few.items()}
        return {**inputs, **whole}, {n: a[self.some.get(n, ())] for n, a in outputs.items()}


def linear(test: str, format: str, tokens: int, hidden: int, out: int) -> OpCase:
    few, rows = slice(CHECKED), slice(ROWS)
    shape = {"tokens": tokens, "hidden": hidden, "out": out}
    some = {"x": (few,), "weight": (rows,), "out": (few, rows)}
    return OpCase(test, "linear", format, shape, ("weight",), some)


def shapes_of(model: ModelShape, *, output: bool) -> list[tuple[int, int]]:
    """(hidden, out) of a model's different matrices, with or without the last one."""
    q, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    m = model
    found = [(m.hidden, q), (m.hidden, kv), (q, m.hidden), (m.hidden, m.ffn), (m.ffn, m.hidden)]
    return list(dict.fromkeys(found + [(m.hidden, m.vocab)] * output))


def attention(model: ModelShape, format: str, cells: int) -> OpCase:
    """A token that sees a full cache; the heads of the first KV head are checked."""
    m = model
    shape = {
        "tokens": 1, "heads": m.heads, "kv_heads": m.kv_heads, "head_dim": m.head_dim,
        "capacity": cells, "sequences": 1,
    }  # fmt: skip
    every, group = slice(None), slice(m.heads // m.kv_heads)
    head = slice(FORMATS[format].row_bytes(m.head_dim))
    some: dict[str, tuple[slice, ...]] = {
        "q": (every, group), "k": (every, head), "v": (every, head), "slopes": (group,),
        "sinks": (group,), "out": (every, group),
    }  # fmt: skip
    return OpCase("flash decode", "attention", format, shape, ("k", "v"), some)


def sparse(op: str, model: ModelShape, format: str, share: float) -> OpCase:
    """sparse_linear or sparse_axpy for one token, with such a share of the neurons active."""
    neurons, active = model.ffn, round(share * model.ffn)
    shape = {
        "tokens": 1, "hidden": model.hidden, "neurons": neurons, "active": active, "held": neurons,
    }  # fmt: skip
    return OpCase(f"{op} {share:.0%}", op, format, shape, ("weight",), {})
