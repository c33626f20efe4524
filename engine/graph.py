"""The computation graph: a list of nodes (ops with named arguments), built once per model.

Dimensions are integers, or names of sizes that vary by step: `tokens` (in the batch) and `outputs`
(tokens whose logits are requested); or multiples such as `tokens*4`, where heads are rows.
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
    """Split a dimension into its name and its factor."""
    name, _, times = dim.partition("*")
    return name, int(times or 1)


def size_of(dim: Dim, sizes: Mapping[str, int]) -> int:
    """Evaluate a dimension with these sizes."""
    if isinstance(dim, int):
        return dim
    name, times = factors(dim)
    return sizes[name] * times


@dataclass(frozen=True, slots=True)
class Value:
    """An array of a step. `kind` names the owner of its memory: "activation" (the arena), "input"
    (written before each step), "weight" or "cache".

    Values of the same name are views of the same memory. A weight or cache in a format other than
    float32 has dtype "u8", with `dims` in elements.
    """

    name: str
    kind: str
    dtype: str
    dims: tuple[Dim, ...]
    format: str | None = None

    def fixed(self, axis: int) -> int:
        """A dimension that does not vary by step."""
        size = self.dims[axis]
        assert isinstance(size, int)
        return size

    def view(self, *dims: Dim) -> "Value":
        """The same memory with other dimensions."""
        return replace(self, dims=dims)

    def as_weight(self) -> "Value":
        """float32 rows as an F32 weight, for ops that gather rows."""
        return replace(self, dtype="u8", format="F32")

    def sizes(self, limits: Mapping[str, int]) -> tuple[int, ...]:
        """Dimensions in array elements (bytes for a format), with `limits` for the names."""
        sizes = [size_of(d, limits) for d in self.dims]
        if self.format:
            sizes[-1] = FORMATS[self.format].row_bytes(sizes[-1])
        return tuple(sizes)

    def bytes(self, limits: Mapping[str, int]) -> int:
        return math.prod(self.sizes(limits)) * np.dtype(DTYPES[self.dtype]).itemsize


@dataclass(frozen=True, slots=True)
class Node:
    """An op with its `arguments` by parameter name, outputs included. `target` pins it to a device
    type, if given."""

    op: str
    arguments: Mapping[str, Value | float]
    format: str | None = None
    label: str = ""
    target: str = ""

    @property
    def block(self) -> str:
        """The block's name in the label: "blk.3" of "blk.3.attention"."""
        return self.label.rpartition(".")[0]

    def value(self, name: str) -> Value:
        """The array argument of this name."""
        value = self.arguments[name]
        assert isinstance(value, Value)
        return value

    def with_arguments(self, **arguments: Value | float) -> "Node":
        """Returns a copy with these arguments replaced."""
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
            found[argument.name] = int(value)  # a scalar named like an axis is its size
    return found


@dataclass(slots=True)
class Graph:
    """Nodes in execution order; new ones are appended for `target`. A node's label names its output
    and is unique."""

    nodes: list[Node] = field(default_factory=list)
    target: str = ""
    _labels: set[str] = field(default_factory=set)

    def map_nodes(self, new: Callable[[Node], Sequence[Node]]) -> "Graph":
        """Returns the graph with each node replaced by the nodes `new` returns for it."""
        return replace(self, nodes=[other for node in self.nodes for other in new(node)])

    def __call__(
        self, op: str, label: str, out: Value | None = None, **arguments: Value | float
    ) -> Value:
        """Append a node and return its only output; dimensions follow from the op's signature.

        `out` names existing memory to write to, such as a cache.
        """
        axes, spec = _axes(op, label, arguments), OPS[op]
        if out is None:
            (output,) = spec.outputs
            out = _new_output(output, label, axes)
        self._append(op, label, {**arguments, spec.outputs[0].name: out})
        return out

    def multi_output(
        self,
        op: str,
        label: str,
        into: Mapping[str, Value] = MappingProxyType({}),
        **arguments: Value | float,
    ) -> tuple[Value, ...]:
        """Append a node of an op with several outputs and return them; those in `into` are existing
        memory to write to."""
        axes, spec = _axes(op, label, arguments), OPS[op]
        made = {
            o.name: into.get(o.name) or _new_output(o, f"{label}.{o.name}", axes)
            for o in spec.outputs
        }
        self._append(op, label, {**arguments, **made})
        return tuple(made.values())

    @property
    def hidden(self) -> Value:
        """The last hidden states [outputs, hidden], from which the logits are computed."""
        (found,) = (node.value("x") for node in self.nodes if node.label == LOGITS)
        return found

    @contextmanager
    def on_target(self, target: str) -> Iterator[None]:
        """Pin nodes appended within the context to this target."""
        before, self.target = self.target, target
        try:
            yield
        finally:
            self.target = before

    def _append(self, op: str, label: str, arguments: dict[str, Value | float]) -> None:
        if label in self._labels:
            raise ValueError(f"{label}: another node already has this label")
        self._labels.add(label)
        formats = [v.format for v in arguments.values() if isinstance(v, Value) and v.format]
        chosen = formats[0] if OPS[op].formats and formats else None
        self.nodes.append(Node(op, arguments, chosen, label, self.target))


def _new_output(output: Argument, label: str, axes: Mapping[str, Dim]) -> Value:
    """A new output in the arena."""
    dims = tuple(_dim(axis, axes) for axis in output.axes)
    return Value(label, "activation", output.dtype, dims)


def _dim(axis: str, axes: Mapping[str, Dim]) -> Dim:
    """The dimension of an output's axis, which may be an integer or a product of two axes."""
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
