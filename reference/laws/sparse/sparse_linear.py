"""Laws of the linear layer over active neurons."""

from dataclasses import replace

import numpy as np

from reference.laws.common import Make, other_bits, several
from reference.op import Apply, Arguments, Array, Case, Law
from reference.sparse.neuron_masks import active_rows, neuron_split

CUTS = (47, 48, 49, 65)  # tokens around a kernel's tile


def laws(make: Make) -> tuple[Law, ...]:
    def some(case: Case) -> Arguments:
        """Ordinary numbers, several tokens, and enough rows for neurons of each kind."""
        shape = {**several(case.in_range(), "tokens", "neurons", "held").shape}
        shape["active"] = min(shape["held"], shape["neurons"]) * 2 // 3
        return make(replace(case, shape=shape, values="normal"))

    def each_token_alone(apply: Apply, given: Arguments) -> str:
        together = apply(given)["out"]
        for t in range(len(together)):
            alone = with_mask({**given, "x": given["x"][t : t + 1]}, given["mask"][t : t + 1])
            if found := other_bits(apply(alone), {"out": together[t : t + 1]}):
                return f"token {t} without the others: {found}"
        return ""

    def a_token_does_not_see_the_others(apply: Apply, case: Case) -> str:
        """Each token alone, with only its own neurons' rows, has the bits that it has among all."""
        return each_token_alone(apply, some(case))

    def cuts_change_no_bit(apply: Apply, case: Case) -> str:
        """So it does with more tokens than a tile, and rows longer than one."""
        sizes = {"tokens": int(case.rng().choice(CUTS)), "hidden": 2304, "neurons": 50}
        shape = sizes | {"active": 33, "held": 40}
        return each_token_alone(apply, make(replace(case, shape=shape, values="normal")))

    def a_neuron_does_not_see_the_others(apply: Apply, case: Case) -> str:
        """An active neuron's bits do not depend on which others are active for which tokens, and
        all other outputs are zero."""
        given = some(case)
        given["slots"] = given["slots"] % len(given["weight"])
        full = apply(with_mask(given, np.ones_like(given["mask"])))["out"]
        fewer = given["mask"] * (np.arange(given["mask"].shape[1]) % 3 > 0).astype(np.uint8)
        for mask in (given["mask"], fewer, np.zeros_like(fewer)):
            want = np.where(mask, full, np.float32(0))
            if found := other_bits(apply(with_mask(given, mask)), {"out": want}):
                return f"with {mask.any(axis=0).sum()} neurons active instead of all: {found}"
        return ""

    def outputs_follow_their_neurons(apply: Apply, case: Case) -> str:
        """Permuting the neurons permutes the outputs, bit for bit."""
        given, rng = some(case), case.rng()
        order = rng.permutation(len(given["slots"]))
        moved = with_mask({**given, "slots": given["slots"][order]}, given["mask"][:, order])
        return other_bits(apply(moved), {"out": apply(given)["out"][:, order]})

    def rows_lie_anywhere(apply: Apply, case: Case) -> str:
        """Permuting the rows with the slots changes no bit."""
        given = some(case)
        return other_bits(apply(in_another_order(given, case.rng())), apply(given))

    def two_parts_make_the_whole(apply: Apply, case: Case) -> str:
        """The neurons of one place and of the other, each with zeros elsewhere, add up to all of
        them, bit for bit."""
        given = some(case)
        places = case.rng().integers(0, 2, len(given["slots"]))
        parts = (neuron_split(given["mask"], places, place) for place in (0, 1))
        one, other = (apply(with_mask(given, part))["out"] for part in parts)
        return other_bits({"out": one + other}, apply(given))

    def what_is_inactive_is_nothing(apply: Apply, case: Case) -> str:
        """NaN rows of neurons that are active for no token change no bit, nor do these neurons'
        slots, nor entries of rows beyond the count."""
        given = some(case)
        want, active = apply(given), given["rows"][: given["count"][0]]
        weight = given["weight"].copy()
        weight[np.delete(np.arange(len(weight)), given["slots"][active])] = 0xFF
        resident = given["slots"] % len(weight)
        for changed in ({"weight": weight}, {"slots": resident}, *beyond_the_count(given)):
            if found := other_bits(apply({**given, **changed}), want):
                return f"{min(changed)} changed for inactive neurons: {found}"
        return ""

    def what_others_need_is_zero(apply: Apply, case: Case) -> str:
        """A neuron that is NaN affects only the tokens for which it is active."""
        given = some(case)
        tokens = len(given["mask"])
        neurons = given["mask"].shape[1]
        given["slots"] = np.arange(neurons, dtype=np.int32) % len(given["weight"])
        few = min(tokens, neurons, len(given["weight"]))
        given = with_mask(given, np.eye(tokens, neurons, dtype=np.uint8))
        given["weight"][given["slots"][:few]] = 0xFF
        want = np.where(given["mask"], np.float32(np.nan), np.float32(0))
        return other_bits(apply(given), {"out": want})

    return tuple(
        Law(law.__name__.replace("_", "-"), law)
        for law in (
            a_token_does_not_see_the_others,
            cuts_change_no_bit,
            a_neuron_does_not_see_the_others,
            outputs_follow_their_neurons,
            rows_lie_anywhere,
            two_parts_make_the_whole,
            what_is_inactive_is_nothing,
            what_others_need_is_zero,
        )
    )


def with_mask(given: Arguments, mask: Array) -> Arguments:
    """The same with another mask, and its rows."""
    rows, count = active_rows(mask)
    return {**given, "mask": np.ascontiguousarray(mask), "rows": rows, "count": count}


def in_another_order(given: Arguments, rng: np.random.Generator) -> Arguments:
    """The same with the weight's rows shuffled."""
    held = len(given["weight"])
    order = rng.permutation(held)
    place = np.argsort(order).astype(np.int32)
    return {**given, "weight": given["weight"][order], "slots": place[given["slots"] % held]}


def beyond_the_count(given: Arguments) -> list[Arguments]:
    """Variants of the entries of `rows` after the active neurons."""
    found = []
    for stale in (-1, len(given["rows"]) - 1, 2**31 - 1):
        rows = given["rows"].copy()
        rows[given["count"][0] :] = stale
        found.append({"rows": rows})
    return found
