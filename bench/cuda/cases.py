"""What is measured on a GPU: ops at the sizes of Llama-2-7B, with inputs that can be checked.

Weights and caches are some rows again and again: quantising them all would take longer than
measuring, and a few rows of the output are enough to check.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from data.shapes import ModelShape
from reference.formats import FORMATS
from reference.neuron_masks import active_rows
from reference.op import Arguments, Array, Cost
from reference.table import OPS

ROWS = 64  # that are different
CHECKED = 8  # tokens, where there are many
Outputs = dict[str, Array]
Part = Callable[[Arguments, Outputs], tuple[Arguments, Outputs]]


def whole(inputs: Arguments, outputs: Outputs) -> tuple[Arguments, Outputs]:
    return inputs, outputs


@dataclass(frozen=True)
class OpCase:
    """An op at a size. `test` is what the measurement is called, `make()` gives its inputs, `cost`
    is what a run must move and do, `cold` the arrays that no cache may hold, `part(inputs,
    outputs)` what is checked."""

    test: str
    op: str
    format: str
    shape: Mapping[str, int]
    make: Callable[[], Arguments]
    cost: Cost
    cold: tuple[str, ...]
    part: Part = whole

    @cached_property
    def inputs(self) -> Arguments:
        """Made when first asked for, since weights are large."""
        return self.make()

    @property
    def sizes(self) -> str:
        """tokens=1,hidden=4096,out=4096"""
        return ",".join(f"{axis}={size}" for axis, size in self.shape.items())


def repeated(format: str, rows: int, elements: int, rng: np.random.Generator) -> Array:
    """uint8 [rows, row_bytes] of normal numbers whose squares sum to one or so."""
    drawn = rng.standard_normal((min(rows, ROWS), elements), np.float32) / np.float32(elements**0.5)
    few = FORMATS[format].like(drawn, rng)
    return np.resize(few, (rows, few.shape[1]))


def linear(test: str, format: str, tokens: int, hidden: int, out: int) -> OpCase:
    shape = {"tokens": tokens, "hidden": hidden, "out": out}

    def make() -> Arguments:
        rng = np.random.default_rng(out)
        x = rng.standard_normal((tokens, hidden), np.float32)
        return {"x": x, "weight": repeated(format, out, hidden, rng), "format": format}

    def part(inputs: Arguments, outputs: Outputs) -> tuple[Arguments, Outputs]:
        few = {**inputs, "x": inputs["x"][:CHECKED], "weight": inputs["weight"][:ROWS]}
        return few, {"out": outputs["out"][:CHECKED, :ROWS]}

    cost = OPS["linear"].cost(shape, format)
    return OpCase(test, "linear", format, shape, make, cost, ("weight",), part)


def shapes_of(model: ModelShape, *, output: bool) -> list[tuple[int, int]]:
    """(hidden, out) of a model's different matrices, with or without the last one."""
    q, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    m = model
    found = [(m.hidden, q), (m.hidden, kv), (q, m.hidden), (m.hidden, m.ffn), (m.ffn, m.hidden)]
    return list(dict.fromkeys(found + [(m.hidden, m.vocab)] * output))


def attention(model: ModelShape, format: str, cells: int) -> OpCase:
    """A token that sees a full cache."""
    m = model
    shape = {
        "tokens": 1, "heads": m.heads, "kv_heads": m.kv_heads, "head_dim": m.head_dim,
        "capacity": cells, "sequences": 1,
    }  # fmt: skip
    head = FORMATS[format].row_bytes(m.head_dim)

    def make() -> Arguments:
        rng = np.random.default_rng(cells)
        k, v = (repeated(format, cells, m.kv_heads * m.head_dim, rng) for _ in range(2))
        return {
            "q": rng.standard_normal((1, m.heads, m.head_dim), np.float32),
            "k": k,
            "v": v,
            "lists": np.arange(cells, dtype=np.int32)[None],
            "spans": np.array([[0, 0, cells]], np.int32),
            "positions": np.array([cells], np.int32),
            "cell_positions": np.arange(cells, dtype=np.int32),
            "slopes": np.zeros(m.heads, np.float32),
            "sinks": np.full(m.heads, -np.inf, np.float32),
            "scale": m.head_dim**-0.5,
            "softcap": 0.0,
            "format": format,
        }

    def part(inputs: Arguments, outputs: Outputs) -> tuple[Arguments, Outputs]:
        """The heads of the first KV head."""
        group = m.heads // m.kv_heads
        own = {name: inputs[name][:group] for name in ("slopes", "sinks")}
        own |= {"q": inputs["q"][:, :group]}
        own |= {name: inputs[name][:, :head] for name in "kv"}
        return {**inputs, **own}, {"out": outputs["out"][:, :group]}

    cost = OPS["attention"].cost(shape, format)
    return OpCase("flash decode", "attention", format, shape, make, cost, ("k", "v"), part)


def sparse(op: str, model: ModelShape, format: str, share: float) -> OpCase:
    """sparse_linear or sparse_axpy for one token, with such a share of the neurons active."""
    neurons, hidden = model.ffn, model.hidden
    active = round(share * neurons)
    shape = {
        "tokens": 1, "hidden": hidden, "neurons": neurons, "active": active, "held": neurons,
    }  # fmt: skip

    def make() -> Arguments:
        rng = np.random.default_rng(7)
        mask = np.zeros((1, neurons), np.uint8)
        mask[0, rng.permutation(neurons)[:active]] = 1
        rows, count = active_rows(mask)
        slots = np.arange(neurons, dtype=np.int32)
        inputs: Arguments = {"weight": repeated(format, neurons, hidden, rng), "rows": rows}
        inputs |= {"count": count, "slots": slots, "format": format}
        if op == "sparse_linear":
            return inputs | {"x": rng.standard_normal((1, hidden), np.float32), "mask": mask}
        return inputs | {"a": rng.standard_normal((1, neurons), np.float32)}

    cost = OPS[op].cost(shape, format)
    return OpCase(f"{op} {share:.0%}", op, format, shape, make, cost, ("weight",))
