"""Laws derived from an op's signature, for any op that satisfies them.

Each takes the op's signature and its `make`, and belongs in the op's row: `laws=(alone(SIGNATURE,
make), contained(SIGNATURE, make), *LAWS)`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from reference.op import Apply, Argument, Arguments, Array, Case, Law, parse_signature

Make = Callable[[Case], Arguments]
FEW, MANY = 9, 40  # sizes beyond kernels' tiles, seldom a multiple of one


def alone(signature: str, make: Make, axis: str = "tokens") -> Law:
    """A part of a batch, down to a single token, gives the bits that it has in the batch."""
    inputs, outputs = parse_signature(signature)
    _demand(outputs, (axis,))

    def broken(apply: Apply, case: Case) -> str:
        given = make(several(case, axis))
        batch, count = apply(given), _size(inputs, given, axis)
        middle = np.sort(case.rng().choice(count + 1, 2, replace=False))
        for first, end in ((0, 1), (count - 1, count), middle, (0, count - 1)):
            got = apply(_part(inputs, given, axis, first, end))
            if found := other_bits(got, _part(outputs, batch, axis, first, end)):
                return f"{axis} {first} to {end - 1} of {count} without the others: {found}"
        return ""

    return Law(f"{axis}-alone", broken)


def contained(signature: str, make: Make, *axes: str) -> Law:
    """NaN or infinity changes no bit elsewhere along these axes: in other tokens, if none is named.

    It is put into each float32 argument that has one of the axes.
    """
    inputs, outputs = parse_signature(signature)
    axes = axes or ("tokens",)
    _demand(outputs, axes)
    spoilt = [a for a in inputs if a.dtype == "f32" and set(axes) & set(a.axes)]

    def broken(apply: Apply, case: Case) -> str:
        given = make(several(case.in_range(), *axes))
        clean, rng = apply(given), case.rng()
        for argument in spoilt:
            size = given[argument.name].size
            for flat, value in ((0, np.nan), (size - 1, np.inf), (rng.integers(size), np.nan)):
                x = given[argument.name].copy()
                x.flat[flat] = value
                own = dict(zip(argument.axes, np.unravel_index(flat, x.shape), strict=True))
                got, want = apply({**given, argument.name: x}), {}
                for o in outputs:
                    where = tuple(own[a] if a in axes and a in own else slice(None) for a in o.axes)
                    want[o.name] = clean[o.name].copy()
                    want[o.name][where] = got[o.name][where]
                if found := other_bits(got, want):
                    at = ", ".join(f"{a} {own[a]}" for a in axes if a in own)
                    return f"{argument.name} is {value} at {at}: {found}"
        return ""

    return Law(f"{'-'.join(axes)}-contained", broken)


def scales(make: Make, names: Sequence[str], factors: Sequence[float]) -> Law:
    """These inputs times -1, 0 or a power of two give the output times that, exactly."""

    def broken(apply: Apply, case: Case) -> str:
        given = make(replace(case, values="normal"))
        once = apply(given)
        for factor in factors:
            got = apply({**given, **{name: given[name] * factor for name in names}})
            # a sum that cancels is +0 both times: +0 and -0 compare equal here
            got = {name: value + 0.0 for name, value in got.items()}
            want = {name: value * factor + 0.0 for name, value in once.items()}
            if found := other_bits(got, want):
                return f"{' and '.join(names)} times {factor}: {found}"
        return ""

    return Law(f"scales-with-{'-'.join(names)}", broken)


def in_turns(
    signature: str, make: Make, before: str = "before", out: str = "out", axis: str = "tokens"
) -> Law:
    """A batch in two calls, the second on the first one's output, gives the bits of one call; an
    empty batch gives `before`."""
    inputs, _ = parse_signature(signature)

    def broken(apply: Apply, case: Case) -> str:
        given = make(several(case, axis))
        at_once, count = apply(given), _size(inputs, given, axis)
        cut = int(case.rng().integers(1, count))
        if found := other_bits(apply(_part(inputs, given, axis, 0, 0)), {out: given[before]}):
            return f"no {axis}: {found}"
        first = apply(_part(inputs, given, axis, 0, cut))[out]
        both = apply({**_part(inputs, given, axis, cut, count), before: first})
        if found := other_bits(both, at_once):
            return f"{cut} of {count} {axis}, then the others: {found}"
        return ""

    return Law(f"{axis}-in-turns", broken)


def several(case: Case, *axes: str) -> Case:
    """The case with these axes at least as large as a law needs."""
    rng = case.rng()
    sizes = {axis: max(case.shape[axis], int(rng.integers(FEW, MANY))) for axis in axes}
    return replace(case, shape={**case.shape, **sizes})


def other_bits(got: dict[str, Array], want: dict[str, Array]) -> str:
    """A complaint about the first place where outputs differ in bits, or ""; all NaN are equal."""
    for name, expected in want.items():
        found = got[name]
        if found.shape != expected.shape:
            return f"{name} has the shape {list(found.shape)}, not {list(expected.shape)}"
        kind = f"u{found.itemsize}"
        unlike = found.view(kind) != expected.view(kind)
        if found.dtype.kind == "f":
            unlike &= ~(np.isnan(found) & np.isnan(expected))
        if unlike.any():
            at = tuple(int(i) for i in np.argwhere(unlike)[0])
            return f"{name}{list(at)} is {found[at]:.9g}, not {expected[at]:.9g}"
    return ""


def _demand(outputs: Sequence[Argument], axes: Sequence[str]) -> None:
    for output in outputs:
        if missing := set(axes) - set(output.axes):
            raise ValueError(f"{output.name} has no axis {min(missing)}, so no law along it")


def _size(arguments: Sequence[Argument], given: Arguments, axis: str) -> int:
    argument = next(a for a in arguments if axis in a.axes)
    return int(given[argument.name].shape[argument.axes.index(axis)])


def _part(
    arguments: Sequence[Argument], values: Arguments, axis: str, first: int, end: int
) -> Arguments:
    """The values, sliced from `first` to `end` along the axis if they have it."""
    part = dict(values)
    for a in arguments:
        if axis in a.axes:
            part[a.name] = np.take(values[a.name], np.arange(first, end), a.axes.index(axis))
    return part
