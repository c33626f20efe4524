"""Which sizes a certificate answers for, and what has to be tried before a kernel serves others.

Sizes that a model fixes (hidden, heads) are covered where all of them lie among those that cases
sample densely, or where just this combination was tried. Sizes that vary from step to step (tokens,
cells) are covered up to the largest that was tried.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from reference.op import Case, Op, Shape

Axes = dict[str, list[int]]  # the smallest and the largest size that was tried, by axis
MOST_OPERATIONS = 2**31  # of a case at a node's own shape


def tried(cases: Iterable[Case]) -> Axes:
    """The smallest and the largest size of each axis."""
    found: Axes = {}
    for case in cases:
        for axis, size in case.shape.items():
            least, most = found.get(axis, (size, size))
            found[axis] = [min(least, size), max(most, size)]
    return found


def joined(one: Mapping[str, Sequence[int]], other: Mapping[str, Sequence[int]]) -> Axes:
    """What both together answer for."""
    ends = {axis: [*one.get(axis, ()), *other.get(axis, ())] for axis in {**one, **other}}
    return {axis: [min(sizes), max(sizes)] for axis, sizes in ends.items()}


def fixed(op: Op, shape: Shape) -> dict[str, int]:
    """The sizes that a model fixes."""
    return {a: size for a, size in shape.items() if a in op.axes and a not in op.varying}


def large(op: Op, shape: Shape) -> bool:
    """Whether a size that a model fixes is beyond what cases sample densely."""
    return any(size > max(op.axes[axis]) for axis, size in fixed(op, shape).items())


def beyond(op: Op, axes: Mapping[str, Sequence[int]], shape: Shape) -> dict[str, int]:
    """The sizes that vary and are larger than any that was tried."""
    varying = {a: size for a, size in shape.items() if a in op.axes and a in op.varying}
    return {a: size for a, size in varying.items() if size > axes.get(a, (0, 0))[1]}


def covers(
    op: Op, axes: Mapping[str, Sequence[int]], shapes: Sequence[Shape], shape: Shape
) -> bool:
    """Whether what was tried answers for this shape of a node."""
    own = fixed(op, shape)
    same = any(own.items() <= other.items() for other in shapes)
    return not beyond(op, axes, shape) and (same or not large(op, shape))


def node_cases(op: Op, cases: Sequence[Case], shape: Shape, secret: int) -> list[Case]:
    """What has to be tried for a node's shape beside these cases: the sizes that its model fixes
    with few tokens, and each size that varies beyond what was tried while the others stay small."""
    rng, own, found = np.random.default_rng(secret), fixed(op, shape), list[Case]()
    ordinary = [case for case in cases if min(case.shape.values()) > 0] or cases
    cheapest = min(ordinary, key=lambda case: op.cost(case.shape, case.format).operations)
    for base in [cheapest, *(ordinary[int(i)] for i in rng.integers(len(ordinary), size=2))]:
        case = op.case({**base.shape, **own}, base.values, int(rng.integers(2**31)), base.format)
        if op.cost(case.shape, case.format).operations > MOST_OPERATIONS:
            case = replace(case, shape=op.fit({**cheapest.shape, **own}, case.format))
        found.append(case)
    for axis, size in beyond(op, tried(cases), shape).items():
        larger = {**cheapest.shape, axis: size}
        found.append(op.case(larger, cheapest.values, secret, cheapest.format))
    return found
