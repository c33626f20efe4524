"""Planted bugs that every op with a state has."""

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.bugs.bug import Bug, changed, in_python
from reference.op import Array

Step = Callable[..., tuple[Array, Array]]


def of_states(op: str, step: Step, read_by: str = "") -> tuple[Bug, ...]:
    """Of an op that gives an output and `before` with what was put into its slots; `read_by` is
    the argument that reads a state."""

    def nothing_kept(**given: Any) -> tuple[Array, Array]:
        return step(**given)[0], given["before"]

    def one_text(sources: Array) -> Array:
        return np.where(np.arange(len(sources)) == 0, sources, -1)

    found = {
        "nothing_kept": nothing_kept,
        "one_text": changed(step, sources=one_text),
        "every_token_from_a_slot": changed(step, sources=lambda s: np.maximum(s, 0)),
    }
    if read_by:
        late = {read_by: lambda rows: np.roll(rows, 1, axis=0)}
        found["read_before_it_moves"] = changed(step, **late)
    return in_python(op, **found)
