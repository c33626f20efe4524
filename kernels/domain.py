"""Which sizes a certificate covers, and what must be tried before a kernel serves others.

Sizes fixed by a model (hidden, heads) are covered where all of them lie among those that cases
sample densely, or where exactly this combination was tried. Sizes that vary from step to step
(tokens, cells) are covered up to the largest that was tried.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from reference.op import Case, Op, Shape
from reference.values import FINITE

Axes = dict[str, list[int]]  # smallest and largest size tried, by axis
MOST_OPERATIONS = 2**31  # of a case at a node's own shape


def extent(cases: Iterable[Case]) -> Axes:
    """The smallest and the largest size of each axis."""
    found: Axes = {}
    for case in cases:
        for axis, size in case.shape.items():
            least, most = found.get(axis, (size, size))
            found[axis] = [min(least, size), max(most, size)]
    return found


def joined(one: Mapping[str, Sequence[int]], other: Mapping[str, Sequence[int]]) -> Axes:
    """The union of two domains."""
    ends = {axis: [*one.get(axis, ()), *other.get(axis, ())] for axis in {**one, **other}}
    return {axis: [min(sizes), max(sizes)] for axis, sizes in ends.items()}


def fixed(op: Op, shape: Shape) -> dict[str, int]:
    """The sizes that a model fixes."""
    return {a: size for a, size in shape.items() if a in op.axes and a not in op.varying}


def _sampled(op: Op, axes: Mapping[str, Sequence[int]], own: Shape) -> bool:
    """Whether all sizes that a model fixes lie among those that cases sample densely."""
    ends = {axis: axes.get(axis, (0, -1)) for axis in own}
    return all(
        ends[axis][0] <= size <= min(ends[axis][1], max(op.axes[axis]))
        for axis, size in own.items()
    )


def beyond(op: Op, axes: Mapping[str, Sequence[int]], shape: Shape) -> dict[str, int]:
    """The varying sizes that are larger than any that was tried."""
    varying = {a: size for a, size in shape.items() if a in op.axes and a in op.varying}
    return {a: size for a, size in varying.items() if size > axes.get(a, (0, 0))[1]}


def covers(
    op: Op, axes: Mapping[str, Sequence[int]], shapes: Sequence[Shape], shape: Shape
) -> bool:
    """Whether the certificate covers this shape of a node."""
    own = fixed(op, shape)
    same = any(fixed(op, other) == own for other in shapes)
    return not beyond(op, axes, shape) and (same or _sampled(op, axes, own))


def node_cases(op: Op, cases: Sequence[Case], shape: Shape, secret: int) -> list[Case]:
    """The further cases that a node's shape requires: the model's fixed sizes with small varying
    ones, with all varying ones as large as time allows, and with each of them alone; and each size
    beyond what was tried while all others are small."""
    rng, own, found = np.random.default_rng(secret), fixed(op, shape), list[Case]()
    finite = [case for case in cases if case.values in FINITE]
    ordinary = [case for case in finite if min(case.shape.values()) > 0] or finite
    cheapest = min(ordinary, key=lambda case: op.cost(case.shape, case.format).operations)

    def at(base: Case, values: str = op.values[0], varying: Shape | None = None) -> Case:
        wanted = {**base.shape, **own, **(varying or {})}
        return op.case(wanted, values, int(rng.integers(2**31)), base.format)

    def costs(case: Case) -> float:
        return op.cost(case.shape, case.format).operations

    drawn = ordinary[int(rng.integers(len(ordinary)))]
    some = at(drawn, drawn.values)
    found += [at(cheapest), some if costs(some) <= MOST_OPERATIONS else at(cheapest)]
    varying = {a: size for a, size in shape.items() if a in op.varying and a in op.axes}
    each = [{axis: size} for axis, size in varying.items()] if len(varying) > 1 else []
    for most in filter(None, [varying, *each]):
        while max(most.values()) > 1 and costs(at(cheapest, varying=most)) > MOST_OPERATIONS:
            most[max(most, key=most.__getitem__)] //= 2
        found.append(at(cheapest, varying=most))
    for axis, size in beyond(op, extent(cases), shape).items():
        larger = {**cheapest.shape, axis: size}
        found.append(op.case(larger, op.values[0], secret, cheapest.format))
    return found
