"""What became of wrong kernels that were planted to try the judge: kept beside the certificates.

`python -m conformance.bugs` keeps them, `assay report` shows them.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from kernels.cache import keep, read
from kernels.certificates import JUDGE
from kernels.provenance import digest_of
from reference.table import OPS

FILE = "planted-bugs.jsonl"


@dataclass(frozen=True, slots=True)
class Planted:
    """A bug of an op, the stage of the trial that stopped it ("" if none did) and what that said;
    `seconds` are those from its source to there, compiling included."""

    op: str
    bug: str
    language: str
    format: str
    stage: str
    seconds: float
    failure: str


def _judge() -> str:
    """What stops bugs: the judge, with the references and cases of all ops."""
    return digest_of(*JUDGE, *sorted({op.reference.__module__ for op in OPS.values()}))


def keep_planted(bugs: Iterable[Planted]) -> None:
    """Keep all that were tried, in the place of what was kept before."""
    lines = [{"judge": _judge()}, *map(asdict, bugs)]
    keep(FILE, "".join(json.dumps(line) + "\n" for line in lines).encode())


def load_planted() -> list[Planted]:
    """Return those that the present judge was tried with: none of another, or of a damaged file."""
    try:
        first, *rows = map(json.loads, (read(FILE) or b"").splitlines())
        return [Planted(**row) for row in rows] if first["judge"] == _judge() else []
    except (ValueError, TypeError, KeyError):
        return []
