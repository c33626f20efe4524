"""What kernels compute, as digests: machines whose digests agree computed the same bits.

    python -m conformance.support.bits KERNEL...

prints a line of JSON for each: the kernel, then the digests of what its op's own cases gave it and
of what it made of them. Signs of NaN aside, which IEEE 754 leaves to whoever adds.
"""

import hashlib
import json
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from kernels.call import call
from kernels.table import find
from reference.op import Array

CASES = 12  # of each kernel, the least work first
MOST = 1 << 18  # operations of a case: an emulated machine does few


def _update(digest: Any, arrays: Mapping[str, Any]) -> None:
    for name in sorted(arrays):
        value = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {value.dtype} {value.shape}\n".encode())
        digest.update(_told(value).tobytes())


def _told(value: Array) -> Array:
    return np.where(np.isnan(value), np.abs(value), value) if value.dtype.kind == "f" else value


def digests(name: str) -> tuple[str, str]:
    """Of what a kernel is given, and of what it gives."""
    kernel = find(name)
    op, given, made = kernel.spec, hashlib.sha256(), hashlib.sha256()
    cases = [case for case in op.quick_cases(kernel.format) if kernel.takes(case.shape)]
    cases = [c for c in cases if op.cost(c.shape, c.format).operations <= MOST]
    for case in sorted(cases, key=lambda c: op.cost(c.shape, c.format).operations)[-CASES:]:
        inputs = op.make(case)
        _update(given, inputs)
        _update(made, call(kernel, inputs))
    return given.hexdigest()[:16], made.hexdigest()[:16]


if __name__ == "__main__":
    for told in sys.argv[1:]:
        print(json.dumps([told, *digests(told)]), flush=True)
