"""`python -m data.golden.make [OP ...]`: write the golden vectors, of all ops or of these; the same
bytes every time, on one machine."""

import json
import math
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from data.golden import FOLDER, INDEX, sha256
from reference.op import DTYPES, Arguments, Array, Case, Op
from reference.table import OPS

KINDS = ("normal", "spiky", "ties")
# One kind of values for each of their formats, in rotation: dequantise covers their decoding.
IN_TURN = ("embedding", "sparse_linear", "sparse_axpy")
MOST_BYTES = 2270  # of a case's arrays, which keeps all files below a megabyte
EPOCH = (1980, 1, 1, 0, 0, 0)


def main(names: Sequence[str] = (), folder: Path = FOLDER) -> None:
    """Write the files of the ops of these names, or of every op, and the index of them all."""
    if unknown := [name for name in names if name not in OPS]:
        sys.exit(f"no op is called {unknown[0]}")
    index = json.loads((folder / INDEX).read_text()) if names else {}
    for op in (OPS[name] for name in names or OPS):
        chosen = list(small_cases(op))
        path = folder / f"{op.name}.npz"
        save(path, chosen, op)
        index[op.name] = {"sha256": sha256(path), "cases": [case.describe() for case in chosen]}
    in_order = {name: index[name] for name in OPS if name in index}
    (folder / INDEX).write_text(json.dumps(in_order, indent=1) + "\n")


def small_cases(op: Op) -> Iterator[Case]:
    """For each format and kind of values the largest quick case that is small and has informative
    results; for a format without one, the smallest of the first kind."""

    def beyond(case: Case) -> tuple[bool, int]:
        return size(op, case) > MOST_BYTES, abs(size(op, case) - MOST_BYTES)

    for turn, wanted in enumerate(op.formats or (None,)):
        kinds = KINDS[turn % 3 :][:1] if op.name in IN_TURN else KINDS
        candidates = sorted(op.quick_cases(wanted, count=240), key=beyond)
        telling = (
            next((c for c in candidates if c.values == kind and _says_something(op, c)), None)
            for kind in kinds
        )
        found = list(filter(None, telling))
        yield from [case for case in found if size(op, case) <= MOST_BYTES] or found[:1]


def _says_something(op: Op, case: Case) -> bool:
    return any(value.any() for value in op.expected(op.make(case)).values())


def size(op: Op, case: Case) -> int:
    """Bytes of the case's arrays, with results in float64."""
    inputs = [(DTYPES.get(a.dtype, np.uint8), a) for a in op.inputs if a.axes]
    arrays = [*inputs, *((np.float64, a) for a in op.outputs)]
    return sum(
        np.dtype(dtype).itemsize * math.prod(a.dims(case.shape, case.format)) for dtype, a in arrays
    )


def save(path: Path, chosen: list[Case], op: Op) -> None:
    """An .npz file whose bytes depend only on its arrays: uncompressed, dated 1980."""
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
    main(sys.argv[1:])
