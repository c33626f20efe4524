"""Planted bugs of kivi_keys and kivi_values."""

from typing import Any

import numpy as np

from conformance.bugs.bug import changed, in_python
from reference.cache.kivi import kivi_keys, kivi_values
from reference.formats.kivi import GROUP, STEPS
from reference.op import Array


def steps_down(of: Any) -> Any:
    """Steps rounded down, so that the largest number of a group exceeds its last level."""

    def wrong(**given: Any) -> Array:
        out = of(**given)
        rows = out.reshape(*out.shape[:2], -1)
        written = given["into"][given["into"] >= 0]
        head_dim = out.shape[2]
        steps = rows[written, :, 10 * head_dim :]
        rows[written, :, 10 * head_dim :] = np.maximum(steps, 1) - 1
        return rows.reshape(out.shape)

    return wrong


def everywhere(of: Any) -> Any:
    """-1, no page, is taken as the last page."""

    def wrong(**given: Any) -> Array:
        pages = len(given["before"])
        into = given["into"]
        if pages - 1 not in into and (into < 0).any():
            into = into.copy()
            at = int(np.flatnonzero(into < 0)[0])
            if given["spans"][at, 1] >= GROUP:
                into[at] = pages - 1
        return of(**{**given, "into": into})

    return wrong


def symmetric(of: Any) -> Any:
    """No zero point: levels are those of the largest magnitude."""

    def wrong(**given: Any) -> Array:
        out = of(**given)
        rows, head_dim = out.reshape(*out.shape[:2], -1), out.shape[2]
        for page in given["into"][given["into"] >= 0]:
            zeros = rows[page, :, 8 * head_dim : 10 * head_dim].copy().view(np.float16)
            steps = STEPS[np.minimum(rows[page, :, 10 * head_dim :], len(STEPS) - 1)]
            zeros = (-1.5 * steps).astype(np.float16)
            rows[page, :, 8 * head_dim : 10 * head_dim] = zeros.view(np.uint8)
        return rows.reshape(out.shape)

    return wrong


def later_cells(spans: Array) -> Array:
    """Pack the group that the token sees, not the one before."""
    moved = spans.copy()
    moved[:, 1] = np.maximum(GROUP, spans[:, 1] - 1)
    return moved


def _bugs(op: str, of: Any, other: Any) -> tuple[Any, ...]:
    return in_python(
        op,
        the_other_kind=other,
        steps_down=steps_down(of),
        everywhere=everywhere(of),
        symmetric=symmetric(of),
        a_cell_early=changed(of, spans=later_cells),
        of_the_first_sequence=changed(
            of, spans=lambda spans: np.column_stack([0 * spans[:, :1], spans[:, 1:]])
        ),
        pages_cleared=changed(of, before=np.zeros_like),
        formats=("F16",),
    )


BUGS = (*_bugs("kivi_keys", kivi_keys, kivi_values), *_bugs("kivi_values", kivi_values, kivi_keys))
