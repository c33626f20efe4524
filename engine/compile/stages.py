"""Which calls need no barrier between them.

A barrier is needed where a thread reads what another has written, or overwrites what another still
reads. Two calls need none if neither touches what the other writes, or if both are split by tokens
and share only memory of each thread's own tokens.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from engine.graph import Dim, Value
from kernels.cpu.runtime.share import Share, all_arguments

Memory = tuple[str, str]


def memory(value: Value) -> Memory:
    """The key that two values have in common if they are views of the same memory."""
    return value.kind, value.name


@dataclass(frozen=True, slots=True)
class Call:
    """One share of a step, with the arguments of its signature.

    `step` is the step's index in the plan, `writes` is the memory that the step writes, and
    `splits` is the axis that threads divide by `part`, if the kernel declares one. A call `by_all`
    must be run by every thread: it waits for something, for example.
    """

    step: int
    share: Share
    arguments: Mapping[str, Value | float]
    writes: frozenset[Memory]
    splits: str = ""
    by_all: bool = False

    def values(self) -> list[Value]:
        """The arrays among its arguments."""
        return [value for value in self.arguments.values() if isinstance(value, Value)]

    def own(self) -> dict[Memory, Dim]:
        """Memory of which a thread sees its own part and no other, and the size that is divided."""
        found: dict[Memory, Dim] = {}
        others: set[Memory] = set()
        for argument in all_arguments(self.share.signature):
            value = self.arguments[argument.name]
            if isinstance(value, Value):
                if self.splits and argument.axes[0] == self.splits:
                    found[memory(value)] = value.dims[0]
                else:
                    others.add(memory(value))
        return {name: size for name, size in found.items() if name not in others}


def in_common(first: Call, second: Call) -> frozenset[Memory]:
    """Memory that one of them writes and both touch."""
    one, other = (call.writes | {memory(v) for v in call.values()} for call in (first, second))
    return (first.writes & other) | (second.writes & one)


def may_share_a_stage(first: Call, second: Call) -> bool:
    """Whether threads may proceed from one to the other without a barrier."""
    common = in_common(first, second)
    one, other = first.own(), second.own()
    return all(name in one and one[name] == other.get(name) for name in common)


def stages(calls: Iterable[Call]) -> list[list[Call]]:
    """The calls with barriers between: each goes into the earliest stage possible, after all calls
    with which it shares memory."""
    found: list[list[Call]] = []
    for call in calls:
        where = len(found)
        for i in reversed(range(len(found))):
            if all(may_share_a_stage(before, call) for before in found[i]):
                where = i
            if any(in_common(before, call) for before in found[i]):
                break
        if where == len(found):
            found.append([])
        found[where].append(call)
    return found


def touched(stages: Iterable[Iterable[Call]]) -> list[list[Value]]:
    """The arrays of each stage."""
    return [[value for call in stage for value in call.values()] for stage in stages]


def apart(stages: Iterable[list[Call]], names: Collection[str]) -> list[list[Call]]:
    """The stages, split so that none touches two values of these names."""
    found: list[list[Call]] = []
    for stage in stages:
        found.append([])
        seen: set[str] = set()
        for call in stage:
            own = {value.name for value in call.values()} & set(names)
            if seen and own - seen:
                found.append([])
                seen = set()
            seen |= own
            found[-1].append(call)
    return found
