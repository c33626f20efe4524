"""Turns of a child: arrays laid out, a call, and what it left there."""

from collections.abc import Mapping

import numpy as np

from kernels.foreign.child import PLACES, Call, Child, layout_of
from kernels.guard import poison
from kernels.runs import differing
from reference.op import Arguments, Array, Op


class Wrote(Exception):  # noqa: N818  it is what was found
    """Something was written where it may not be, or after the call had ended."""


class Turns:
    """One child's calls of an op, one after the other."""

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
        """The outputs of one call; Ended if there are none, Wrote if there is more. They begin as
        NaN, or as `ordinary` numbers, so that a NaN has to be written, too."""
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
        """Nothing was written beside outputs, and nothing to inputs."""
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
        """Nothing has changed since the call ended."""
        assert self._call is not None
        outputs = self.child.outputs
        now = {name: outputs.array(slot) for name, slot in self._call.outputs.items()}
        if not self.child.stands_still():
            raise Wrote("it went on after it had stopped")
        if name := differing(self._left, now):
            raise Wrote(f"{name} changed after the call had ended")

    def unwritten(self) -> str:
        """Which elements hold what they held before the call, as a complaint."""
        for name, left in self._left.items():
            before = self._poison[name]
            width = f"u{left.itemsize}"
            same = left.view(width) == before.view(width)
            if (same.all() and left.nbytes >= 4) or (left.dtype.kind == "f" and same.any()):
                at = [int(i) for i in np.argwhere(same)[0]]
                return f"{name}{at} was not written; {same.sum()} of {same.size} were not"
        return ""
