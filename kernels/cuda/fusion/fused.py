"""A kernel that does at once what other kernels do one after the other, bit for bit.

A step of one token is many small launches, and each takes its time whatever it does. So where
kernels stand in a row, one that does all their work may take their place
(docs/decisions/029-fused-launches.md). It has no formula of its own: its reference is the run of
its members on the same device, and its bound is zero.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kernels.cuda.runtime.call import calls, packed_weights
from kernels.cuda.runtime.current import current
from kernels.cuda.runtime.device import upload
from kernels.cuda.runtime.kernel import CudaKernel
from kernels.provenance import fingerprint_of
from kernels.shapes import sizes
from reference.op import (
    DTYPES,
    Arguments,
    Array,
    Case,
    Cost,
    Op,
    Shape,
    parse_signature,
    same_shape,
    size_of,
)
from reference.quantise_activations import ROUNDINGS


@dataclass(frozen=True, slots=True)
class Member:
    """A kernel that is one of those in the row; `names` says what its arguments and sizes are
    called in the fused kernel, where not the same. A size may be a product."""

    kernel: CudaKernel
    names: Mapping[str, str] = field(default_factory=dict)

    def called(self, name: str) -> str:
        return self.names.get(name, name)

    def shape(self, shape: Shape) -> dict[str, int]:
        """Its own sizes, but for those of its cases that the fused kernel's do not tell."""
        named = {axis for stage in self.kernel.stages for a in stage.arguments for axis in a.axes}
        axes = (axis for axis in (*named, *self.kernel.spec.axes) if axis.isidentifier())
        told = (axis for axis in axes if shape.keys() >= set(self.called(axis).split("*")))
        return {axis: size_of(self.called(axis), shape) for axis in told}


def rounded(x: Array, activations: str) -> dict[str, Array]:
    """What kernels whose row says so of its activations read of x, float32 [tokens, hidden]."""
    return dict(zip(("q", "scale", "total"), ROUNDINGS[activations](x), strict=True))


def equal(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """Zero: the run of the members defines every bit."""
    return {name: np.zeros(value.shape) for name, value in expected.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fused(CudaKernel):
    """One row of their table: `signature` names all that its `members` read and write; `axes`,
    `corners` and `fit` are its trial's."""

    signature: str
    members: tuple[Member, ...]
    axes: Mapping[str, Sequence[int]]
    corners: Sequence[Shape] = ()
    fit: Callable[[Shape, str | None], Shape] = same_shape

    @property
    def spec(self) -> Op:
        """What the judge asks of it: the members' outputs, as words, so that bits are compared."""
        before, written = self.signature.split(" -> ")
        sources = {source: output for output, source in self.in_place}
        kinds = {a.name: str(a).partition(": ")[2] for a in parse_signature(self.signature)[1]}
        before = ", ".join([before, *(f"{s}: {kinds[o]}" for s, o in sources.items())])
        return Op(
            name=self.op,
            reference=self._in_turns,
            signature=f"{before} -> {written.replace(': f32[', ': u32[')}",
            axes=self.axes,
            make=self._make,
            bound=equal,
            cost=self._cost,
            formats=(self.format,) if self.format else (),
            fit=self.fit,
            corners=self.corners,
        )

    def conditions(self) -> str:
        members = [(m.kernel.name, m.kernel.conditions(), dict(m.names)) for m in self.members]
        sources = [s.fingerprint for m in self.members for s in m.kernel.stages]
        cases = dict(self.axes), self.corners, fingerprint_of(self.fit)
        return repr((CudaKernel.conditions(self), self.signature, members, sources, cases))

    def _make(self, case: Case) -> Arguments:
        """What members that come first do not write is as their own ops make it."""
        inputs: Arguments = {}
        for i, member in enumerate(self.members):
            kernel, own = member.kernel, member.shape(case.shape)
            made = kernel.spec.make(replace(case, shape=own, seed=case.seed + i))
            if kernel.activations in ROUNDINGS:
                made |= rounded(made["x"], kernel.activations)
            for name, value in made.items():
                inputs.setdefault(member.called(name), value)
        return {argument.name: inputs[argument.name] for argument in self.spec.inputs}

    def _cost(self, shape: Shape, format: str | None) -> Cost:
        costs = [m.kernel.spec.cost(m.shape(shape), format) for m in self.members]
        return Cost(sum(c.bytes for c in costs), sum(c.operations for c in costs))

    def _in_turns(self, **inputs: Any) -> tuple[Array, ...]:
        """The outputs, members run one by one on the current device."""
        device, op = current(), self.spec
        shape = sizes(op, inputs, self.format)
        host = inputs | packed_weights(self, inputs)
        outputs: dict[str, Array] = {
            o.name: np.empty(o.dims(shape, self.format), DTYPES.get(o.dtype, np.uint8))
            for o in op.outputs
        }
        for output, source in self.in_place:
            outputs[output][...] = inputs[source]
        arrays = {n: v for n, v in host.items() if isinstance(v, np.ndarray)}
        buffers = {
            name: upload(device, np.ascontiguousarray(array))
            for name, array in (arrays | outputs).items()
        }
        values = host | {name: buffer.address for name, buffer in buffers.items()}
        for member in self.members:
            kernel, own = member.kernel, member.shape(shape)
            scratch = device.empty(4 * kernel.scratch(own) if kernel.scratch else 0)
            names = {argument.name for stage in kernel.stages for argument in stage.arguments}
            arguments = {name: values.get(member.called(name)) for name in names}
            for do in calls(device, kernel.stages, arguments | {"scratch": scratch.address}, own):
                do()
        for name, array in outputs.items():
            device.read(buffers[name], array)
        return tuple(outputs.values())
