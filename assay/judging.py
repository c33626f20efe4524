"""The judge, asked for one kernel: one of ours by its name, or anybody's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, overload

from kernels.certificates import Certificate, Store
from kernels.certify import certify
from kernels.foreign.candidate import Candidate
from kernels.foreign.child import Limits
from kernels.foreign.judge import Level
from kernels.foreign.judge import judge as judge_candidate
from kernels.foreign.report import Report
from kernels.table import find_any
from kernels.trial import Request
from reference.op import Op

OURS = ("quick", "full")


@overload
def judge(kernel: str, *, level: Level = "quick") -> Certificate: ...


@overload
def judge(
    kernel: str | Path | Callable[..., Any] | Candidate,
    op: str | Op,
    format: str | None = None,
    level: Level = "quick",
    *,
    numerics: str = "",
    limits: Limits | None = None,
    **manifest: Any,
) -> Report: ...


def judge(
    kernel: str | Path | Callable[..., Any] | Candidate,
    op: str | Op | None = None,
    format: str | None = None,
    level: Level = "quick",
    *,
    numerics: str = "",
    limits: Limits | None = None,
    **manifest: Any,
) -> Certificate | Report:
    """Try a kernel in a child process, and return what was found.

    With an `op`, anybody's: `kernel` is a function with the op's parameters (NumPy, Numba, PyTorch,
    JAX, Triton), or a file as `assay judge` takes it, "my_norm.c" or "mine.py:norm"; the report
    says whether it passed, or else the smallest failing case and the command that replays it.
    `format` is the weights'; level "full" adds the op's laws, "deep" many more cases; `numerics`,
    `limits` and what else a manifest may say, such as `takes="hidden % 64 == 0"`, are the
    candidate's.

    Without one, one of ours, by a name that `assay ops --json` lists, such as
    "linear/cpu/avx2/Q4_0", KeyError if there is none; it is tried anew, and its certificate is kept
    and returned. Level "quick" is what an engine demands; "full" adds the op's laws. ValueError if
    it does not run on this machine.

    A kernel that fails, crashes or hangs raises nothing: `passed` is False, and the certificate's
    `failure` or the report's `reason` says why.
    """
    if op is not None:
        candidate = _candidate(kernel, manifest)
        return judge_candidate(candidate, op, format, level, limits, numerics=numerics)
    if not isinstance(kernel, str):
        raise ValueError("which op is it a kernel of? Say op=, one of assay.OPS")
    if level not in OURS:
        raise ValueError(f"level must be {' or '.join(OURS)}, got {level!r}")
    if missing := find_any(kernel).missing():
        raise ValueError(f"{kernel} does not run here: this machine lacks {', '.join(missing)}")
    found: list[Certificate] = []
    certify(
        [Request(kernel, level)],
        Store(),
        lambda trials: found.extend(filter(None, [trials.certificate])),
    )
    return found[0]


def _candidate(kernel: Any, manifest: dict[str, Any]) -> Candidate:
    if isinstance(kernel, Candidate):
        return kernel
    if isinstance(kernel, str | Path):
        return Candidate.of(kernel, **manifest)
    return Candidate.from_callable(kernel, **manifest)


assert set(OURS) < set(get_args(Level))
