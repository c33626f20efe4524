"""Values on their way into a weight format, and the kernels that take them there."""

from typing import Any

import numpy as np

from kernels.cpu.share import pack_words
from kernels.cpu.team import Program, Team
from kernels.kernel import Kernel

LARGEST = 65504.0  # of float16, which most formats keep their scales in
LARGEST_F32 = float(np.finfo(np.float32).max)
LARGEST_OF = {"F32": LARGEST_F32, "MXFP4": LARGEST_F32, "BF16": 255 * 2.0**120}

Floats = np.ndarray[Any, np.dtype[np.float32]]


def misfit(x: Floats, format: str, first_row: int = 0) -> str:
    """What of x [rows, ...] has no place in the format, if anything: NaN, infinity, and what
    float16 cannot hold in a scale."""
    limit = LARGEST_OF.get(format, LARGEST)
    if float(x.max(initial=0)) <= limit and -float(x.min(initial=0)) <= limit:
        return ""
    rows = x.reshape(len(x), -1)
    wrong = ~(np.abs(rows) <= limit)
    row, column = map(int, np.argwhere(wrong)[0])
    value = rows[row, column]
    return f"element {column} of row {first_row + row} is {value:g}, which {format} cannot hold"


def run(team: Team, kernel: Kernel, arrays: dict[str, Any]) -> None:
    """The kernel over these arrays, by all threads of the team."""
    block = pack_words(kernel.share.signature, arrays)
    team.run(Program([(kernel.share, block)], arrays))
