"""Digests of kernels' outputs: machines with equal digests computed the same bits.

    python -m conformance.support.bits FILE

prints a line of JSON for each kernel in FILE, which `write` created elsewhere: its name, and the
digest of its outputs for the inputs in FILE. Signs of NaN are ignored, which IEEE 754 does not
define. Inputs are stored, since NumPy's powers and exponentials have other last bits on other CPUs.
"""

import hashlib
import json
import pickle
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kernels.call import call
from kernels.table import find
from reference.op import Arguments, Array, Case

CASES = 12  # of each kernel, the smallest first
MOST = 1 << 18  # operations of a case, for emulated machines


def _update(digest: Any, arrays: Mapping[str, Any]) -> None:
    for name in sorted(arrays):
        value = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {value.dtype} {value.shape}\n".encode())
        digest.update(_told(value).tobytes())


def _told(value: Array) -> Array:
    return np.where(np.isnan(value), np.abs(value), value) if value.dtype.kind == "f" else value


def inputs_of(name: str) -> list[Arguments]:
    """Inputs of some of the op's own cases."""
    kernel = find(name)
    op = kernel.spec

    def operations(case: Case) -> float:
        return op.cost(case.shape, case.format).operations

    cases = [case for case in op.quick_cases(kernel.format) if kernel.takes(case.shape)]
    cases = sorted((case for case in cases if operations(case) <= MOST), key=operations)
    return [op.make(case) for case in cases[-CASES:]]


def write(path: Path, names: Iterable[str]) -> None:
    path.write_bytes(pickle.dumps({name: inputs_of(name) for name in names}))


def digest(name: str, inputs: Iterable[Arguments]) -> str:
    """The digest of a kernel's outputs for these inputs."""
    made = hashlib.sha256()
    for given in inputs:
        _update(made, call(find(name), given))
    return made.hexdigest()


def main() -> None:
    for name, inputs in pickle.loads(Path(sys.argv[1]).read_bytes()).items():
        print(json.dumps([name, digest(name, inputs)]), flush=True)


if __name__ == "__main__":
    main()
