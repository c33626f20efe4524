"""Laws of the linear layer of experts."""

from dataclasses import replace

import numpy as np

from reference.laws.common import Make, contained, other_bits, scales
from reference.op import Apply, Case, Law

# Minimum sizes, so that there are several runs of several tokens.
LEAST = {"tokens": 40, "experts": 4, "held": 3}


def laws(signature: str, make: Make) -> tuple[Law, ...]:
    def several(case: Case) -> Case:
        shape = {axis: max(size, LEAST.get(axis, 0)) for axis, size in case.shape.items()}
        return replace(case, shape=shape)

    def each_run_is_alone(apply: Apply, case: Case) -> str:
        """An expert's tokens, or some of them, give the bits that they have among all."""
        given = make(several(case.in_range()))
        whole, begin = apply(given)["out"], 0
        for expert, end in enumerate(given["ends"].tolist()):
            cut = int(case.rng().integers(begin, end + 1))
            for first, last in ((begin, end), (begin, cut), (cut, end)):
                ends = np.zeros_like(given["ends"])
                ends[expert:] = last - first
                got = apply({**given, "x": given["x"][first:last], "ends": ends})
                if found := other_bits(got, {"out": whole[first:last]}):
                    return f"tokens {first} to {last - 1} of expert {expert} alone: {found}"
            begin = end
        return ""

    def others_do_not_matter(apply: Apply, case: Case) -> str:
        """An expert without tokens changes nothing, whatever its slot and the bytes there."""
        given = make(several(case.in_range()))
        idle = int(case.rng().integers(len(given["ends"]) + 1))
        ends, weight = np.insert(given["ends"], idle, 0), given["weight"]
        ends[idle] = ends[idle - 1] if idle else 0
        want, held = apply(given), len(weight)
        for byte, slot in ((0x00, held), (0xFF, held), (0xFF, -1), (0xFF, 2**31 - 1)):
            strange = np.full((1, *weight.shape[1:]), byte, np.uint8)
            more = np.concatenate([weight, strange])
            slots = np.insert(given["slots"], idle, slot)
            changed = {**given, "ends": ends, "weight": more, "slots": slots}
            if found := other_bits(apply(changed), want):
                return f"expert {idle} has no token, slot {slot} and bytes of {byte}: {found}"
        return ""

    def experts_change_places(apply: Apply, case: Case) -> str:
        """Experts in reverse order, with their tokens and slots, give the same."""
        given = make(several(case.in_range()))
        ends = given["ends"]
        counts = np.diff(ends, prepend=0)[::-1]
        runs = zip(ends[::-1], counts, strict=True)
        order = np.concatenate([np.arange(end - count, end) for end, count in runs])
        turned = {
            **given,
            "x": np.ascontiguousarray(given["x"][order]),
            "ends": np.cumsum(counts).astype(np.int32),
            "slots": np.ascontiguousarray(given["slots"][::-1]),
        }
        return other_bits(apply(turned), {"out": apply(given)["out"][order]})

    def slots_change_places(apply: Apply, case: Case) -> str:
        """Permuting the slots of weights makes no difference."""
        given = make(several(case.in_range()))
        held = len(given["weight"])
        turned = {
            **given,
            "weight": np.ascontiguousarray(given["weight"][::-1]),
            "slots": np.int32(held - 1) - given["slots"],
        }
        return other_bits(apply(turned), apply(given))

    return (
        contained(signature, make),
        scales(make, ("x",), (-1.0, 2.0**10)),
        Law("each-run-is-alone", each_run_is_alone),
        Law("others-do-not-matter", others_do_not_matter),
        Law("experts-change-places", experts_change_places),
        Law("slots-change-places", slots_change_places),
    )
