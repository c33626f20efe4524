"""Laws of add_squares and add_squares_by_expert."""

import numpy as np

from reference.laws.common import Make, other_bits, several
from reference.op import Apply, Case, Law


def signs_do_not_count(make: Make) -> Law:
    """-x gives the same sums as x."""

    def broken(apply: Apply, case: Case) -> str:
        given = make(case)
        return other_bits(apply({**given, "x": -given["x"]}), apply(given))

    return Law("signs-do-not-count", broken)


def experts_in_turns(make: Make) -> Law:
    """A batch in two calls, the second on the first one's output, gives the bits of one call; an
    empty batch gives `before`."""

    def broken(apply: Apply, case: Case) -> str:
        given = make(several(case, "tokens"))
        at_once, x, ends = apply(given), given["x"], given["ends"]
        cut = int(case.rng().integers(0, len(x)))
        first = apply({**given, "x": x[:cut], "ends": np.minimum(ends, cut)})
        rest = {"x": x[cut:], "ends": np.maximum(ends - cut, 0).astype(np.int32)}
        both = apply({**rest, "before": first["out"], "met": first["counts"]})
        if found := other_bits(both, at_once):
            return f"{cut} of {len(x)} tokens, then the others: {found}"
        none = apply({**given, "x": x[:0], "ends": np.zeros_like(ends)})
        return other_bits(none, {"out": given["before"], "counts": given["met"]})

    return Law("tokens-in-turns", broken)


def others_do_not_count(make: Make) -> Law:
    """One expert's tokens, NaN included, change no bit of other experts' sums."""

    def broken(apply: Apply, case: Case) -> str:
        given = make(several(case.in_range(), "tokens"))
        clean, ends = apply(given), given["ends"]
        counts = np.diff(ends, prepend=0)
        for expert in (int(np.argmax(counts)), int(np.flatnonzero(counts)[-1])):
            x = given["x"].copy()
            x[ends[expert] - counts[expert] : ends[expert]] = np.nan
            got = apply({**given, "x": x})
            got["out"][expert] = clean["out"][expert]
            if found := other_bits(got, clean):
                return f"tokens of expert {expert} are NaN: {found}"
        return ""

    return Law("others-do-not-count", broken)
