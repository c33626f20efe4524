"""Laws of transposing heads to the outer axis and back."""

from dataclasses import replace

import numpy as np

from reference.laws.common import Make, other_bits, several
from reference.op import Apply, Array, Case, Law


def laws_of_apart(make: Make) -> tuple[Law, ...]:
    def tokens_are_alone(apply: Apply, case: Case) -> str:
        """A token has the rows that it has in a batch, and each head's rows end after it."""
        given = make(several(case, "tokens"))
        x, size = given["x"], given["size"]
        count, heads, _ = x.shape
        whole = apply(given)["out"].reshape(heads, count, size)
        for t in (0, count - 1, int(case.rng().integers(count))):
            got = apply({"x": np.ascontiguousarray(x[t : t + 1]), "size": size})
            want = {"out": whole[:, t], "ends": np.arange(1, heads + 1, dtype=np.int32)}
            if found := other_bits(got, {n: np.ascontiguousarray(a) for n, a in want.items()}):
                return f"token {t} of {count} alone: {found}"
        return ""

    def heads_change_places(apply: Apply, case: Case) -> str:
        """Heads in reverse order give their rows in that order."""
        given = make(several(case, "tokens"))
        count, heads, _ = given["x"].shape
        turned = {**given, "x": np.ascontiguousarray(given["x"][:, ::-1])}
        once, again = apply(given), apply(turned)
        rows = once["out"].reshape(heads, count, -1)[::-1].reshape(once["out"].shape)
        want = {"out": np.ascontiguousarray(rows), "ends": once["ends"]}
        return other_bits(again, want)

    return (
        Law("tokens-are-alone", tokens_are_alone),
        Law("heads-change-places", heads_change_places),
    )


def laws_of_joined(make: Make) -> tuple[Law, ...]:
    def of(y: Array, heads: int, tokens: slice) -> Array:
        rows = y.reshape(heads, -1, y.shape[1])[:, tokens]
        return np.ascontiguousarray(rows.reshape(-1, y.shape[1]))

    def tokens_are_alone(apply: Apply, case: Case) -> str:
        """A token gives what it gives in a batch."""
        given = make(several(case, "tokens"))
        count, heads, _ = given["x"].shape
        whole = apply(given)["out"]
        for t in (0, count - 1, int(case.rng().integers(count))):
            one = slice(t, t + 1)
            alone = {"y": of(given["y"], heads, one), "x": np.ascontiguousarray(given["x"][one])}
            if found := other_bits(apply({**given, **alone}), {"out": whole[one]}):
                return f"token {t} of {count} alone: {found}"
        return ""

    def nothing_else_is_seen(apply: Apply, case: Case) -> str:
        """Elements of x before the appended ones make no difference."""
        several_tokens = several(case, "tokens")
        sizes = {"width": 9, "size": 4, "whole": 7}
        given = make(replace(several_tokens, shape={**several_tokens.shape, **sizes}))
        x, kept = given["x"], given["whole"] - given["y"].shape[1]
        other = x.copy()
        other[:, :, : x.shape[2] - kept] = np.float32(7)
        return other_bits(apply({**given, "x": other}), apply(given))

    return (
        Law("tokens-are-alone", tokens_are_alone),
        Law("nothing-else-is-seen", nothing_else_is_seen),
    )
