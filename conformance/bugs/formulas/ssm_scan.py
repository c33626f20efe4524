"""Planted bugs of the scans."""

from typing import Any

import numpy as np

from conformance.bugs.bug import Bug, changed, in_python
from conformance.bugs.recurrent import Step, of_states
from reference.op import Array
from reference.recurrent.ssm_scan import ssm_scan, ssm_scan_heads


def spoilt(op: str, scan: Step) -> tuple[Bug, ...]:
    """Of either scan."""
    return of_states(op, scan, read_by="c") + in_python(
        op,
        growing=changed(scan, a=np.negative),
        never_forgotten=changed(scan, a=lambda a: np.maximum(a, -8)),
        no_d=changed(scan, d=np.zeros_like),
        decay_in_float16=changed(scan, a=lambda a: a.astype(np.float16).astype(np.float32)),
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
