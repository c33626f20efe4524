"""The judge, asked for one kernel."""

from typing import Literal, get_args

from kernels.certificates import Certificate, Store
from kernels.certify import certify
from kernels.table import find_any
from kernels.trial import Request

Level = Literal["quick", "full"]


def judge(kernel: str, level: Level = "quick") -> Certificate:
    """Try one of our kernels anew, in a child process, and return its certificate, which is kept.

    `kernel` is a name that `assay ops --json` lists, such as "linear/cpu/avx2/Q4_0"; KeyError if
    there is none. Level "quick" is what an engine demands: the op's cases, and some that nobody
    knows before; "full" adds the op's laws. A kernel that fails, crashes or hangs raises nothing:
    `passed` is False and `failure` says why. ValueError if it does not run on this machine.
    """
    if level not in get_args(Level):
        raise ValueError(f"level must be {' or '.join(get_args(Level))}, got {level!r}")
    if missing := find_any(kernel).missing():
        raise ValueError(f"{kernel} does not run here: this machine lacks {', '.join(missing)}")
    found: list[Certificate] = []
    certify(
        [Request(kernel, level)],
        Store(),
        lambda trials: found.extend(filter(None, [trials.certificate])),
    )
    return found[0]
