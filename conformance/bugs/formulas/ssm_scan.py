"""Planted bugs of the scans."""

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.bugs.bug import Bug, in_python
from reference.op import Array
from reference.ssm_scan import ssm_scan, ssm_scan_heads

Scan = Callable[..., tuple[Array, Array]]


def spoilt(op: str, scan: Scan) -> tuple[Bug, ...]:
    """Of either scan."""

    def changed(**changes: Callable[..., Array]) -> Callable[..., tuple[Array, Array]]:
        """The scan of arguments of which some are others."""

        def wrong(**given: Any) -> tuple[Array, Array]:
            return scan(**{**given, **{name: of(given[name]) for name, of in changes.items()}})

        return wrong

    def nothing_kept(**given: Any) -> tuple[Array, Array]:
        return scan(**given)[0], given["before"]

    def read_before_it_moves(**given: Any) -> tuple[Array, Array]:
        late = {**given, "c": np.roll(given["c"], 1, axis=0)}
        return scan(**late)

    def one_text(sources: Array) -> Array:
        return np.where(np.arange(len(sources)) == 0, sources, -1)

    return in_python(
        op,
        nothing_kept=nothing_kept,
        read_before_it_moves=read_before_it_moves,
        growing=changed(a=np.negative),
        never_forgotten=changed(a=lambda a: np.maximum(a, -8)),
        no_d=changed(d=np.zeros_like),
        one_text=changed(sources=one_text),
        every_token_from_a_slot=changed(sources=lambda sources: np.maximum(sources, 0)),
        decay_in_float16=changed(a=lambda a: a.astype(np.float16).astype(np.float32)),
    )


def groups_in_turn(**given: Any) -> tuple[Array, Array]:
    heads, groups = given["x"].shape[1], given["b"].shape[1]
    order = np.arange(heads) % groups
    return ssm_scan_heads(**{**given, "b": given["b"][:, order], "c": given["c"][:, order]})


BUGS = (
    *spoilt("ssm_scan", ssm_scan),
    *spoilt("ssm_scan_heads", ssm_scan_heads),
    *in_python("ssm_scan_heads", groups_in_turn),
)
