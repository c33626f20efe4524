"""A model as a list of nodes: ops with named arguments, built once.

Values are arrays whose sizes are numbers, or the names of what changes from step to step: `tokens`
(those in the batch) and `outputs` (those whose logits are wanted); or multiples such as `tokens*4`,
where heads stand as rows.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from reference.formats import FORMATS
from reference.op import DTYPES, Argument
from reference.table import OPS

Dim = int | str
LOGITS = "logits"  # the label of the node that multiplies the output matrix


def factors(dim: str) -> tuple[str, int]:
    """The name in a dimension, and how many times it counts."""
    name, _, times = dim.partition("*")
    return name, int(times or 1)


def size_of(dim: Dim, sizes: Mapping[str, int]) -> int:
    """A dimension where names have these sizes."""
    if isinstance(dim, int):
        return dim
    name, times = factors(dim)
    return sizes[name] * times


@dataclass(frozen=True, slots=True)
class Value:
    """An array of a step. `kind` says who owns its memory:

    "activation" (the arena), "input" (written before each step), "weight" or "cache".
    Two values of one name are views of the same memory. A weight or cache in a format other than
    float32 has dtype "u8" and counts elements in `dims`.
    """

    name: str
    kind: str
    dtype: str
    dims: tuple[Dim, ...]
    format: str | None = None

    def fixed(self, axis: int) -> int:
        """A dimension that is the same in every step."""
        size = self.dims[axis]
        assert isinstance(size, int)
        return size

    def view(self, *dims: Dim) -> "Value":
        """The same memory under other dimensions."""
        return replace(self, dims=dims)

    def as_weight(self) -> "Value":
        """float32 rows as an F32 weight, for ops that pick rows."""
        return replace(self, dtype="u8", format="F32")

    def sizes(self, limits: Mapping[str, int]) -> tuple[int, ...]:
        """Dimensions in array elements (bytes for a format), names replaced by their limits."""
        sizes = [size_of(d, limits) for d in self.dims]
        if self.format:
            sizes[-1] = FORMATS[self.format].row_bytes(sizes[-1])
        return tuple(sizes)

    def bytes(self, limits: Mapping[str, int]) -> int:
        return math.prod(self.sizes(limits)) * np.dtype(DTYPES[self.dtype]).itemsize


@dataclass(frozen=True, slots=True)
class Node:
    """One op applied: `arguments` by the op's parameter names, outputs included. `target` is the
    one that has to run it, if that is given."""

    op: str
    arguments: Mapping[str, Value | float]
    format: str | None = None
    label: str = ""
    target: str = ""

    @property
    def block(self) -> str:
        """The block that it is labelled after: "blk.3" of "blk.3.attention"."""
        return self.label.rpartition(".")[0]

    def value(self, name: str) -> Value:
        """The argument of this name, an array."""
        value = self.arguments[name]
        assert isinstance(value, Value)
        return value

    def given(self, **arguments: Value | float) -> "Node":
        """The same with these arguments."""
        return replace(self, arguments={**self.arguments, **arguments})


def _axes(op: str, label: str, arguments: Mapping[str, Value | float]) -> dict[str, Dim]:
    try:
        wanted = [argument.name for argument in OPS[op].inputs]
    except KeyError:
        raise ValueError(f"{label}: there is no op {op!r}; `assay ops` lists them") from None
    if arguments.keys() != set(wanted):
        raise ValueError(f"{label}: {op} takes {', '.join(wanted)}; given {', '.join(arguments)}")
    found: dict[str, Dim] = {}
    for argument in OPS[op].inputs:
        value = arguments.get(argument.name)
        if isinstance(value, Value):
            for axis, dim in zip(argument.axes, value.dims, strict=True):
                if axis.isidentifier() and found.setdefault(axis, dim) != dim:
                    raise ValueError(
                        f"{op}: {argument.name} ({value.name}) has {axis} = {dim},"
                        f" expected {found[axis]}"
                    )
        elif value is not None and argument.name in OPS[op].axes:
            found[argument.name] = int(value)  # a scalar that is called like an axis is its size
    return found


@dataclass(slots=True)
class Graph:
    """Nodes in the order in which they run; those that are appended are for `target`. A label is
    the name of what its node makes, so that no two nodes have one."""

    nodes: list[Node] = field(default_factory=list)
    target: str = ""
    _labels: set[str] = field(default_factory=set)

    def rewritten(self, new: Callable[[Node], Sequence[Node]]) -> "Graph":
        """The graph with new nodes in the place of each."""
        return replace(self, nodes=[other for node in self.nodes for other in new(node)])

    def __call__(
        self, op: str, label: str, out: Value | None = None, **arguments: Value | float
    ) -> Value:
        """Append a node and give its (first) output; dimensions follow from the op's signature.

        `out` names existing memory to write to, such as a cache.
        """
        axes, spec = _axes(op, label, arguments), OPS[op]
        if out is None:
            (output,) = spec.outputs
            out = _made(output, label, axes)
        self._append(op, label, {**arguments, spec.outputs[0].name: out})
        return out

    def several(
        self,
        op: str,
        label: str,
        into: Mapping[str, Value] = MappingProxyType({}),
        **arguments: Value | float,
    ) -> tuple[Value, ...]:
        """Append a node of an op with several outputs, and give them; those of `into` are existing
        memory to write to."""
        axes, spec = _axes(op, label, arguments), OPS[op]
        made = {
            o.name: into.get(o.name) or _made(o, f"{label}.{o.name}", axes) for o in spec.outputs
        }
        self._append(op, label, {**arguments, **made})
        return tuple(made.values())

    @property
    def hidden(self) -> Value:
        """What the logits are computed from: the last norm's result [outputs, hidden]."""
        (found,) = (node.value("x") for node in self.nodes if node.label == LOGITS)
        return found

    @contextmanager
    def on(self, target: str) -> Iterator[None]:
        """What is appended meanwhile has to run there."""
        before, self.target = self.target, target
        try:
            yield
        finally:
            self.target = before

    def _append(self, op: str, label: str, arguments: dict[str, Value | float]) -> None:
        if label in self._labels:
            raise ValueError(f"{label}: an earlier node has this label, which names what it makes")
        self._labels.add(label)
        formats = [v.format for v in arguments.values() if isinstance(v, Value) and v.format]
        chosen = formats[0] if OPS[op].formats and formats else None
        self.nodes.append(Node(op, arguments, chosen, label, self.target))


def _made(output: Argument, label: str, axes: Mapping[str, Dim]) -> Value:
    """An output in the arena."""
    dims = tuple(_dim(axis, axes) for axis in output.axes)
    return Value(label, "activation", output.dtype, dims)


def _dim(axis: str, axes: Mapping[str, Dim]) -> Dim:
    """The dimension of an output's axis, a product of two too, where axes have these."""
    if axis.isdigit():
        return int(axis)
    if "*" not in axis:
        return axes[axis]
    one, other = (axes[factor] for factor in axis.split("*"))
    if isinstance(one, int) and isinstance(other, int):
        return one * other
    named, count = (one, other) if isinstance(one, str) else (other, one)
    assert isinstance(named, str)
    assert isinstance(count, int)
    name, times = factors(named)
    return f"{name}*{times * count}"
