"""Graphs that run between steps on blocks' caches, each part on the device that holds them."""

from collections.abc import Iterable, Mapping, Sequence

from engine.compile.plan import Plan
from engine.gpu.device_plan import DevicePlan
from engine.graph import Node, Value
from reference.op import Array


def caches_of(nodes: Iterable[Node]) -> set[str]:
    """The caches that nodes touch, by name."""
    given = (value for node in nodes for value in node.arguments.values())
    return {v.name for v in given if isinstance(v, Value) and v.kind == "cache"}


class DeviceSide:
    """Parts on a device, each of which leaves the value `last` for the host."""

    def __init__(self, plan: DevicePlan, last: Value) -> None:
        self._plan, self._last, self.inputs = plan, last, plan.inputs.host

    def resize(self, **sizes: int) -> None:
        self._plan.resize(**sizes)

    def set(self, label: str, name: str, value: float) -> None:
        self._plan.set(label, name, value)

    def run(self, part: int) -> None:
        self._plan.run(part)
        self._plan.read(self._last, self.inputs[self._last.name])


class BetweenSteps:
    """Parts of a graph, some `on_gpu`, the others on the CPU; `inputs` are written before a part
    runs, and read afterwards."""

    def __init__(
        self,
        on_gpu: Sequence[bool],
        plan: Plan | None,
        device: DeviceSide | None,
        inputs: Mapping[str, Array],
    ) -> None:
        self.inputs = inputs
        sides = {False: plan, True: device}
        self._places = [(sides[there], on_gpu[:i].count(there)) for i, there in enumerate(on_gpu)]

    def run(self, part: int, sizes: Mapping[str, int], label: str, name: str) -> None:
        """Run a part at these sizes; one of them is also the scalar `name` of its node with this
        label."""
        side, number = self._places[part]
        assert side
        side.resize(**sizes)
        side.set(label, name, sizes[name])
        side.run(number)
