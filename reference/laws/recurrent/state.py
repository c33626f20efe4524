"""Laws of ops with recurrent state in slots (reference/recurrent/state.py), from an op's signature
and its `make`, for cases with enough slots."""

from dataclasses import replace
from itertools import pairwise

import numpy as np

from reference.laws.common import Make, other_bits
from reference.op import Apply, Arguments, Array, Case, Law, parse_signature

TOKENS, SLOTS = 21, 8


def state_laws(signature: str, make: Make) -> tuple[Law, ...]:
    """The laws of an op whose states before and after are `before` and `states`."""
    inputs, outputs = parse_signature(signature)
    by_token = [a.name for a in inputs if a.axes[:1] == ("tokens",) and a.dtype == "f32"]
    results = [a.name for a in outputs if a.axes[0] == "tokens"]

    def scene(case: Case) -> Arguments:
        """One sequence from slot 0, whose last state is written to slot 1."""
        shape = {**case.shape, "tokens": TOKENS, "slots": SLOTS}
        given = make(replace(case, shape=shape, values="normal"))
        sources, targets = np.full((2, TOKENS), -1, np.int32)
        sources[0], targets[-1] = 0, 1
        return {**given, "sources": sources, "targets": targets}

    def part(given: Arguments, chosen: Array, sources: object, targets: object) -> Arguments:
        """A subset of the tokens."""
        rows = {name: np.ascontiguousarray(given[name][chosen]) for name in by_token}
        routes = {"sources": np.array(sources, np.int32), "targets": np.array(targets, np.int32)}
        return {**given, **rows, **routes}

    def cut_anywhere(apply: Apply, case: Case) -> str:
        """A sequence in two steps has the bits of one step, and so have steps of one token each."""
        given = scene(case)
        whole, cut = apply(given), int(case.rng().integers(1, TOKENS))
        numbers = np.arange(TOKENS)
        for cuts in ([0, cut, TOKENS], list(range(TOKENS + 1))):
            states = given["before"]
            found: list[dict[str, Array]] = []
            for first, end in pairwise(cuts):
                start, stop = (2 + len(found) % 2, 2 + (len(found) + 1) % 2)
                sources, targets = given["sources"][first:end].copy(), np.full(end - first, -1)
                sources[0] = start if first else 0
                targets[-1] = 1 if end == TOKENS else stop
                own = part(given, numbers[first:end], sources, targets)
                found.append(apply({**own, "before": states}))
                states = found[-1]["states"]
            got = {name: np.concatenate([each[name] for each in found]) for name in results}
            wanted = {name: whole[name] for name in results}
            if wrong := other_bits(got, wanted):
                return f"{TOKENS} tokens in steps cut at {cuts[1:-1]}: {wrong}"
            if wrong := other_bits({"states": states[1]}, {"states": whole["states"][1]}):
                return f"the state after steps cut at {cuts[1:-1]}: {wrong}"
        return ""

    def sequences_apart(apply: Apply, case: Case) -> str:
        """A sequence after another in the same step gives what it gives alone, even if the other is
        NaN."""
        given, even, odd = scene(case), np.arange(0, TOKENS, 2), np.arange(1, TOKENS, 2)
        alone = apply(part(given, even, [0] + [-1] * (len(even) - 1), [-1] * len(even)))
        for spoilt in (False, True):
            rows = {name: given[name].copy() for name in by_token}
            before = given["before"].copy()
            if spoilt:
                before[7] = np.nan
                for name in by_token:
                    rows[name][odd] = np.nan
            order = np.concatenate([odd, even])
            sources = [7] + [-1] * (len(odd) - 1) + [0] + [-1] * (len(even) - 1)
            mixed = part({**given, **rows, "before": before}, order, sources, [-1] * TOKENS)
            got = apply(mixed)
            mine = {name: got[name][len(odd) :] for name in results}
            if wrong := other_bits(mine, {name: alone[name] for name in results}):
                return f"a sequence after another{' of NaN' * spoilt} in a step: {wrong}"
        return ""

    def rolled_back(apply: Apply, case: Case) -> str:
        """Rollback: continuing from the state after an earlier token gives what the sequence gives
        without later ones; also within the step that wrote it, as in a tree of drafts."""
        given = scene(case)
        numbers = np.arange(TOKENS)
        plain = apply(given)
        sources, targets = [0] + [-1] * 10, [-1] * 4 + [2] + [-1] * 6
        sources += [2] + [-1] * (TOKENS - 6)
        targets += [-1] * (TOKENS - 6) + [3]
        order = np.concatenate([numbers[:5], numbers[TOKENS - 6 :], numbers[5:]])
        got = apply(part(given, order, sources, targets))
        mine = {name: np.concatenate([got[name][:5], got[name][11:]]) for name in results}
        if wrong := other_bits(mine, {name: plain[name] for name in results}):
            return f"after rejected drafts: {wrong}"
        return other_bits({"states": got["states"][3]}, {"states": plain["states"][1]})

    def other_slots_stay(apply: Apply, case: Case) -> str:
        """Slots that are not written keep every bit, NaN too; a step without tokens changes
        none."""
        given = scene(case)
        before = given["before"].copy()
        before[2:] = np.nan
        after = apply({**given, "before": before})["states"]
        kept = np.delete(np.arange(SLOTS), 1)
        if wrong := other_bits({"states": after[kept]}, {"states": before[kept]}):
            return wrong
        none = apply(part(given, np.arange(0), [], []))
        return other_bits({"states": none["states"]}, {"states": given["before"]})

    def where_a_slot_lies(apply: Apply, case: Case) -> str:
        """Permuting the slots changes no bit."""
        given = scene(case)
        here = apply(given)
        moved = {**given, "before": given["before"][::-1].copy()}
        moved["sources"] = np.where(given["sources"] >= 0, SLOTS - 1 - given["sources"], -1)
        moved["targets"] = np.where(given["targets"] >= 0, SLOTS - 1 - given["targets"], -1)
        there = apply({n: v.astype(np.int32) if n in ("sources", "targets") else v
                       for n, v in moved.items()})  # fmt: skip
        return other_bits({**there, "states": there["states"][::-1]}, here)

    return (
        Law("cut-anywhere", cut_anywhere),
        Law("sequences-apart", sequences_apart),
        Law("rolled-back", rolled_back),
        Law("other-slots-stay", other_slots_stay),
        Law("where-a-slot-lies", where_a_slot_lies),
    )
