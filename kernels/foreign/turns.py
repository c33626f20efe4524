"""One call at a time in a child: lay out arrays, call, check what it wrote."""

from collections.abc import Mapping

import numpy as np

from kernels.foreign.child import PLACES, Call, Child, layout_of
from kernels.guard import poison
from kernels.runs import differing
from reference.op import Arguments, Array, Op


class Wrote(Exception):  # noqa: N818  it is what was found
    """A write out of bounds or after the call had ended."""


class Turns:
    """Successive calls of an op in one child."""

    def __init__(self, child: Child, op: Op, format: str | None, rng: np.random.Generator) -> None:
        self.child, self.op, self.format = child, op, format
        self._turn = int(rng.integers(len(PLACES)))
        self._call: Call | None = None
        self._inputs: Arguments = {}
        self._left: dict[str, Array] = {}
        self._poison: dict[str, Array] = {}

    def call(
        self, inputs: Arguments, shape: Mapping[str, int], rng: np.random.Generator,
        same_place: bool = False, ordinary: bool = False,
    ) -> dict[str, Array]:  # fmt: skip
        """The outputs of one call; raises Ended if it failed and Wrote if it wrote elsewhere.
        Outputs are pre-filled with NaN, or with `ordinary` numbers so that NaN outputs must be
        written too."""
        if not same_place:
            self._turn += 1
        first, together = self._turn % len(PLACES), self._turn % 2
        places = PLACES[first : first + 1] if together else PLACES[first:] + PLACES[:first]
        child = self.child
        child.inputs.clear()
        child.outputs.clear()
        call = self._call = layout_of(child, self.op, shape, self.format, inputs, places, rng)
        child.prepare([call])
        self._fill(call, inputs, rng, ordinary)
        child.run()
        self._left = {name: child.outputs.array(slot).copy() for name, slot in call.outputs.items()}
        self._check()
        return self._left

    def _fill(
        self, call: Call, inputs: Arguments, rng: np.random.Generator, ordinary: bool
    ) -> None:
        self._inputs = inputs
        for name, slot in call.inputs.items():
            self.child.inputs.array(slot)[...] = inputs[name]
        for slot in call.outputs.values():
            poison(self.child.outputs.array(slot), rng, ordinary)
        self._poison = {
            name: self.child.outputs.array(slot).copy() for name, slot in call.outputs.items()
        }

    def _check(self) -> None:
        """Check that nothing was written around outputs or to inputs."""
        assert self._call is not None
        inputs, outputs = self.child.inputs, self.child.outputs
        if where := outputs.spoilt():
            raise Wrote(f"it wrote {where} an output, outside of its bounds")
        for name, slot in self._call.inputs.items():
            if np.ascontiguousarray(self._inputs[name]).tobytes() != inputs.array(slot).tobytes():
                raise Wrote(f"it wrote to its input {name}")
        if where := inputs.spoilt():
            raise Wrote(f"it wrote {where} an input")

    def look_again(self) -> None:
        """Check that nothing has changed since the call ended."""
        assert self._call is not None
        outputs = self.child.outputs
        now = {name: outputs.array(slot) for name, slot in self._call.outputs.items()}
        if not self.child.stands_still():
            raise Wrote("it went on after it had stopped")
        if name := differing(self._left, now):
            raise Wrote(f"{name} changed after the call had ended")

    def unwritten(self) -> str:
        """The complaint about output elements that still hold their fill value."""
        for name, left in self._left.items():
            before = self._poison[name]
            width = f"u{left.itemsize}"
            same = left.view(width) == before.view(width)
            if (same.all() and left.nbytes >= 4) or (left.dtype.kind == "f" and same.any()):
                at = [int(i) for i in np.argwhere(same)[0]]
                return f"{name}{at} was not written; {same.sum()} of {same.size} were not"
        return ""
