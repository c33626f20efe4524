"""Recurrent state in slots: which state each token of a step continues from.

Ops with state process the tokens of a step in order. Token t continues from the state in slot
`sources[t]` or, if that is -1, from the state after the previous token of the step; its own state
is written to slot `targets[t]`, unless that is -1. So several sequences, chunked prefill, forks,
rejected drafts and trees of them use one mechanism, and the slot of a state never changes a result.
"""

from collections.abc import Iterator

import numpy as np

from reference.op import Arguments, Array, Case, Shape, out_of_range

BEFORE = -1  # source: the previous token of the step


def runs(sources: Array, targets: Array, states: Array) -> Iterator[tuple[Array, int]]:
    """Yield for each token a copy of the state that it continues from, to be updated in place, and
    its index. The updated state is written to `states` [slots, ...] when the next is requested."""
    state = np.zeros(states.shape[1:], states.dtype)
    for t, (source, target) in enumerate(zip(sources, targets, strict=True)):
        if source != BEFORE:
            state = states[source].copy()
        yield state, t
        if target >= 0:
            states[target] = state


def some_runs(case: Case, rng: np.random.Generator) -> Arguments:
    """Sources and targets int32 [tokens]: half of the slots are read and the other half written,
    some of which later tokens of the step read; the last token's state is written."""
    tokens, slots = case.shape["tokens"], case.shape["slots"]
    places = rng.permutation(slots)
    read, free = places[: slots // 2], list(places[slots // 2 :])
    sources, targets = np.full(tokens, BEFORE), np.full(tokens, -1)
    written: list[int] = []
    for t in range(tokens):
        if not t or rng.random() < 0.3:
            again = written and rng.random() < 0.5
            sources[t] = rng.choice(written if again else read)
        if free and (t == tokens - 1 or (len(free) > 1 and rng.random() < 0.4)):
            targets[t] = free.pop()
            written.append(targets[t])
    return {"sources": sources.astype(np.int32), "targets": targets.astype(np.int32)}


def complaint(inputs: Arguments) -> str:
    """An error in sources and targets; "" if there is none."""
    sources, targets, slots = inputs["sources"], inputs["targets"], len(inputs["before"])
    kept = targets[targets >= 0]
    if len(sources) and sources[0] == BEFORE:
        return "sources[0] is -1, but there is no token before the first"
    if len(np.unique(kept)) < len(kept):
        return "targets has a slot twice"
    taken: set[int] = set()
    for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
        taken.add(source)
        if target >= 0 and target in taken:
            return f"targets has slot {target}, which this token or one before it reads"
    return out_of_range("sources", sources[sources != BEFORE], slots) or out_of_range(
        "targets", targets[targets != -1], slots
    )


def fit(shape: Shape, format: str | None) -> Shape:
    """At least one slot to read and one to write."""
    return {**shape, "slots": max(2, shape["slots"])}


def traffic(shape: Shape, size: int) -> int:
    """Bytes of a state of `size` float32, read once and written once."""
    return 8 * size * min(1, shape["tokens"])
