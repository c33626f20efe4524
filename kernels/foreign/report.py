"""The result of judging a candidate."""

from dataclasses import asdict, dataclass, field
from typing import Any

from reference.op import Case

EMULATED = "an emulator of a GPU ran it, on this CPU"
INTERPRETED = "Triton's interpreter ran it, on this CPU"
COPIED = "its arrays are copied to a GPU and back in each call"
HELD, BROKEN, NOT_ASKED = "held", "broken", "not asked"


@dataclass(frozen=True, slots=True)
class LawResult:
    """A law: "held", "broken" with an example, or "not asked" with the reason; `wrong`: the
    violation was beyond the op's bound, and not of bits alone."""

    name: str
    outcome: str
    example: str = ""
    wrong: bool = False


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds per call of one contender at a shape, in turns with the others; `ratio` (with its
    interval) is the candidate's time over this contender's; `share` is the fraction of this
    machine's limit, 0 if unknown."""

    name: str
    shape: str
    seconds: float
    samples: int
    ratio: float = 1.0
    low: float = 1.0
    high: float = 1.0
    share: float = 0.0
    limit: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """A failing case: the finding, its stage, and the command that runs it again."""

    kind: str
    reason: str
    case: Case
    replay: str

    def json(self) -> dict[str, Any]:
        found = asdict(self)
        found["case"] = {
            "shape": dict(self.case.shape),
            "values": self.case.values,
            "seed": self.case.seed,
            "format": self.case.format,
        }
        return found


@dataclass(frozen=True, slots=True)
class Report:
    """- `verdict`: "passed"; "wrong", "crashed", "hung" or "raised" in a case; "refused": it does
      not compile or load, wrote where it may not, or was faster than this machine can be.
    - `reason`: one line. `first`: the first failing case; `shrunk`: the smallest found beside it.
    - `worst`: |error| / bound at most, `ordinary` and `nmse` at most of ordinary values, of `cases`
      that were tried up to the first failing one; from level "full" on of all.
    - `sandbox`: what held of it: each measure, and "" or why it did not.
    """

    candidate: str
    kind: str
    op: str
    format: str
    numerics: str
    level: str
    verdict: str
    reason: str = ""
    first: Failed | None = None
    shrunk: Failed | None = None
    cases: int = 0
    worst: float = 0.0
    nmse: float = 0.0
    ordinary: float = 0.0
    laws: tuple[LawResult, ...] = ()
    times: tuple[Timed, ...] = ()
    sandbox: tuple[tuple[str, str], ...] = ()
    seconds: float = 0.0
    machine: str = ""
    secret: int = 0
    notes: tuple[str, ...] = field(default=())

    @property
    def passed(self) -> bool:
        return self.verdict == "passed"

    @property
    def untimed(self) -> str:
        """Why there is no timing; "" if there is one."""
        found = [note for note in (EMULATED, INTERPRETED, COPIED) if note in self.notes]
        return f"it is not timed: {found[0]}" if found else ""

    @property
    def replay(self) -> str:
        """The command that runs the smallest failing case again; "" if none failed."""
        found = self.shrunk or self.first
        return found.replay if found else ""

    def json(self) -> dict[str, Any]:
        """The report as JSON; infinities become null."""
        found = asdict(self)
        for name in ("first", "shrunk"):
            value: Failed | None = getattr(self, name)
            found[name] = value.json() if value else None
        for name in ("worst", "nmse", "ordinary"):
            found[name] = found[name] if found[name] < float("inf") else None
        found["sandbox"] = [
            {"measure": name, "held": not said, "why": said} for name, said in self.sandbox
        ]
        found["replay"] = self.replay
        found["passed"] = self.passed
        return found
