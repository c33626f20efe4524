"""Laws of the linear layer by transposed weight over active neurons."""

from dataclasses import replace

import numpy as np

from reference.formats import FORMATS
from reference.laws.common import Make, alone, other_bits, several
from reference.laws.sparse.sparse_linear import beyond_the_count, in_another_order
from reference.op import Apply, Arguments, Array, Case, Law

WHOLE = ("F32", "F16", "BF16", "Q8_0", "Q4_0")  # formats that hold small integers exactly


def laws(signature: str, make: Make) -> tuple[Law, ...]:
    tokens_alone = alone(signature, make)

    def some(case: Case) -> Arguments:
        """Ordinary numbers, several tokens, and neurons of each kind."""
        shape = {**several(case, "tokens", "neurons", "held").shape}
        shape["active"] = min(shape["held"], shape["neurons"]) * 2 // 3
        return make(replace(case, shape=shape, values="normal"))

    def nothing_is_zero(apply: Apply, case: Case) -> str:
        """The sum over no neurons is zero."""
        out = apply(with_rows(some(case), np.arange(0)))["out"]
        return "the sum over no neurons is not zero" if (out != 0).any() else ""

    def other_neurons_are_nothing(apply: Apply, case: Case) -> str:
        """NaN in the rows and factors of neurons that are not listed changes no bit, nor do their
        slots, nor entries of rows beyond the count."""
        given = some(case)
        want, active = apply(given), active_of(given)
        weight, a = given["weight"].copy(), given["a"].copy()
        weight[np.delete(np.arange(len(weight)), given["slots"][active])] = 0xFF
        a[:, np.delete(np.arange(a.shape[1]), active)] = np.nan
        resident = given["slots"] % len(weight)
        for changed in (
            {"weight": weight},
            {"a": a},
            {"slots": resident},
            *beyond_the_count(given),
        ):
            if found := other_bits(apply({**given, **changed}), want):
                return f"{min(changed)} changed for neurons not listed: {found}"
        return ""

    def what_no_token_wants_is_not_read(apply: Apply, case: Case) -> str:
        """Listed neurons whose factors are all +0 or -0 may hold NaN, and change no bit."""
        given = some(case)
        active, a, weight = active_of(given), given["a"].copy(), given["weight"].copy()
        idle = active[case.rng().random(len(active)) < 0.5]
        weight[given["slots"][idle]], a[:, idle] = 0xFF, 0
        a[::2, idle] *= -1
        listed = {**given, "weight": weight, "a": a}
        return other_bits(apply(listed), apply(with_rows(listed, np.setdiff1d(active, idle))))

    def rows_lie_anywhere(apply: Apply, case: Case) -> str:
        """Permuting the rows with the slots changes no bit."""
        given = some(case)
        return other_bits(apply(in_another_order(given, case.rng())), apply(given))

    def cuts_change_no_bit(apply: Apply, case: Case) -> str:
        """With more tokens than a tile, and enough neurons to be divided among threads, tokens have
        the bits that they have alone."""
        sizes = {"tokens": 70, "neurons": 1600, "hidden": 256, "active": 90, "held": 90}
        return tokens_alone.broken(apply, replace(case, shape=sizes, values="normal"))

    def whole_numbers_are_exact(apply: Apply, case: Case) -> str:
        """Integer sums that float32 holds are exact, in one part or in two."""
        rng, neurons = case.rng(), 65
        a = rng.integers(-100, 101, (5, neurons)).astype(np.float32)
        w = rng.integers(-7, 8, (neurons, 96)).astype(np.float32)
        w[:, 1::32] = 127 if case.format == "Q8_0" else -8  # so that a block's scale is 1
        every = np.arange(neurons, dtype=np.int32)
        weight = FORMATS[case.format or "F32"].quantise(w)
        given = {"a": a, "weight": weight, "rows": every, "slots": every, "format": case.format}
        for count in (1, 3, 4, 5, neurons):
            rows = np.sort(rng.permutation(neurons)[:count])
            whole = apply(with_rows(given, rows))["out"]
            if not np.array_equal(whole, a[:, rows] @ w[rows].astype(np.float64)):
                return f"products of {count} whole numbers are not exact"
            one, other = (apply(with_rows(given, part))["out"] for part in (rows[::2], rows[1::2]))
            if not np.array_equal(one + other, whole):
                return f"{count} neurons in two parts do not add up to the whole"
        return ""

    everywhere = (
        nothing_is_zero,
        other_neurons_are_nothing,
        what_no_token_wants_is_not_read,
        rows_lie_anywhere,
        cuts_change_no_bit,
    )
    return (
        *(Law(law.__name__.replace("_", "-"), law) for law in everywhere),
        Law("whole-numbers-are-exact", whole_numbers_are_exact, WHOLE),
    )


def with_rows(given: Arguments, active: Array) -> Arguments:
    """The same for these neurons."""
    rows = np.zeros_like(given["rows"])
    rows[: len(active)] = active
    return {**given, "rows": rows, "count": np.array([len(active)], np.int32)}


def active_of(given: Arguments) -> Array:
    return np.asarray(given["rows"][: given["count"][0]])
