"""What is done between steps to the caches of blocks, each on the side where they are."""

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
    """Parts on a device, of which each leaves the value `last` for the host."""

    def __init__(self, plan: DevicePlan, last: Value) -> None:
        self._plan, self._last, self.inputs = plan, last, plan.inputs.host

    def resize(self, **sizes: int) -> None:
        self._plan.resize(**sizes)

    def set(self, label: str, name: str, value: float) -> None:
        self._plan.set(label, name, value)

    def run(self, part: int) -> None:
        self._plan.run(part)
        self._plan.read(self._last, self.inputs[self._last.name])


class Beside:
    """Parts of a graph, of which some are `on_gpu`, the others the CPU's; `inputs` are written to
    before a part is run, and read afterwards."""

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
        """A part, of these sizes, one of which the scalar `name` of its node of this label is."""
        side, number = self._places[part]
        assert side
        side.resize(**sizes)
        side.set(label, name, sizes[name])
        side.run(number)
