"""`python -m data.golden.make`: write the golden vectors, the same bytes every time."""

import json
import math
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from data.golden import FOLDER, INDEX, sha256
from reference.op import DTYPES, Arguments, Array, Case, Op
from reference.table import OPS

KINDS = ("normal", "spiky", "ties")
MOST_BYTES = 2500  # of a case's arrays, so that all files together stay below a megabyte
EPOCH = (1980, 1, 1, 0, 0, 0)


def main(folder: Path = FOLDER) -> None:
    """Write every op's file and the index of them all."""
    index = {}
    for op in OPS.values():
        chosen = list(small_cases(op))
        path = folder / f"{op.name}.npz"
        save(path, chosen, op)
        index[op.name] = {"sha256": sha256(path), "cases": [case.describe() for case in chosen]}
    (folder / INDEX).write_text(json.dumps(index, indent=1) + "\n")


def small_cases(op: Op) -> Iterator[Case]:
    """The largest quick case that is small, of each kind of values and each format."""
    for wanted in op.formats or (None,):
        candidates = op.quick_cases(wanted, count=240)
        for kind in KINDS:
            fitting = [c for c in candidates if c.values == kind and size(op, c) <= MOST_BYTES]
            if fitting:
                yield max(fitting, key=lambda case: size(op, case))


def size(op: Op, case: Case) -> int:
    """Bytes of the case's arrays, results being float64 or bytes of a format."""
    inputs = [(DTYPES.get(a.dtype, np.uint8), a) for a in op.inputs if a.axes]
    outputs = [(np.uint8 if a.dtype == "format" else np.float64, a) for a in op.outputs]
    arrays = [*inputs, *outputs]
    return sum(
        np.dtype(dtype).itemsize * math.prod(a.dims(case.shape, case.format)) for dtype, a in arrays
    )


def save(path: Path, chosen: list[Case], op: Op) -> None:
    """An .npz file whose bytes depend on its arrays alone: stored as they are, dated 1980."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for number, case in enumerate(chosen):
            inputs = op.make(case)
            for side, arrays in (("in", inputs), ("out", op.expected(inputs))):
                _add(archive, f"{number}.{side}", arrays)


def _add(archive: zipfile.ZipFile, prefix: str, arrays: Arguments | dict[str, Array]) -> None:
    for name, value in arrays.items():
        entry = zipfile.ZipInfo(f"{prefix}.{name}.npy", EPOCH)
        with archive.open(entry, "w") as file:
            np.lib.format.write_array(file, np.asanyarray(value), allow_pickle=False)


if __name__ == "__main__":
    main()
