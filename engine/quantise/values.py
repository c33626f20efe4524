"""Conversion of values into and out of weight formats by certified kernels."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from kernels.certificates import Store
from kernels.certify import Certified
from kernels.cpu.runtime.share import pack_words
from kernels.cpu.runtime.team import Program, Team
from kernels.dispatch import Dispatcher, KernelSpec
from reference.formats import FORMATS
from reference.formats.format import Bytes

LARGEST = 65504.0  # of float16, in which most formats store their scales
LARGEST_F32 = float(np.finfo(np.float32).max)
LARGEST_OF = {"F32": LARGEST_F32, "MXFP4": LARGEST_F32, "BF16": 255 * 2.0**120}

Floats = np.ndarray[Any, np.dtype[np.float32]]


def misfit(x: Floats, format: str, first_row: int = 0) -> str:
    """What in x [rows, ...] the format cannot hold, if anything: NaN, infinity, or values whose
    scale overflows float16."""
    limit = LARGEST_OF.get(format, LARGEST)
    if float(x.max(initial=0)) <= limit and -float(x.min(initial=0)) <= limit:
        return ""
    rows = x.reshape(len(x), -1)
    wrong = ~(np.abs(rows) <= limit)
    row, column = map(int, np.argwhere(wrong)[0])
    value = rows[row, column]
    return f"element {column} of row {first_row + row} is {value:g}, which {format} cannot hold"


def decoding(format: str, elements: int) -> KernelSpec:
    """The kernel that decodes a format, in rows of so many elements."""
    return KernelSpec("dequantise", format, (("hidden", elements),))


def encoding(format: str, elements: int, weighted: bool = False) -> KernelSpec:
    """The kernel that encodes a format; `weighted`: columns differ in importance."""
    op = "quantise_weighted" if weighted else "quantise"
    return KernelSpec(op, format, (("hidden", elements),))


class Formats:
    """Encodes and decodes rows by certified kernels on all threads of a team."""

    def __init__(
        self, team: Team, needs: Iterable[KernelSpec], certified: Certified | None = None
    ) -> None:
        self._team = team
        unique = dict.fromkeys(needs)  # F32 is only copied
        wanted = [need for need in unique if (need.op, need.format) != ("quantise", "F32")]
        self._kernels = Dispatcher(Store()).choose(wanted, certified)

    def decoded(self, rows: Bytes, format: str, elements: int) -> Floats:
        """uint8 [rows, row_bytes] -> float32 [rows, elements]."""
        out = np.empty((len(rows), elements), np.float32)
        self._run(decoding(format, elements), {"data": rows, "out": out})
        return out

    def encoded(self, rows: Floats, format: str, importance: Floats | None = None) -> Bytes:
        """float32 [rows, elements] -> uint8, flat; `importance` float32 [elements]."""
        x = np.ascontiguousarray(rows)
        if format == "F32":
            return x.view(np.uint8).reshape(-1)
        out = np.empty((len(x), FORMATS[format].row_bytes(x.shape[1])), np.uint8)
        weights = {} if importance is None else {"importance": importance}
        self._run(encoding(format, x.shape[1], bool(weights)), {"x": x, "out": out, **weights})
        return out.reshape(-1)

    def _run(self, need: KernelSpec, arrays: dict[str, Any]) -> None:
        share = self._kernels[need].share
        self._team.run(Program([(share, pack_words(share.signature, arrays))], arrays))
