"""Results of the planted bugs that test the judge, kept beside the certificates.

`python -m conformance.bugs` stores them, `assay report` shows them.
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
    """A planted bug of an op, the stage of the trial that stopped it ("" if none did) with its
    message; `seconds` from source to verdict, compilation included."""

    op: str
    bug: str
    language: str
    format: str
    stage: str
    seconds: float
    failure: str


def _judge() -> str:
    """Digest of what stops bugs: the judge with the references and cases of all ops."""
    return digest_of(*JUDGE, *sorted({op.reference.__module__ for op in OPS.values()}))


def keep_planted(bugs: Iterable[Planted]) -> None:
    """Replace the stored results by these."""
    lines = [{"judge": _judge()}, *map(asdict, bugs)]
    keep(FILE, "".join(json.dumps(line) + "\n" for line in lines).encode())


def load_planted() -> list[Planted]:
    """The stored results of the present judge; none of another judge or from a damaged file."""
    try:
        first, *rows = map(json.loads, (read(FILE) or b"").splitlines())
        return [Planted(**row) for row in rows] if first["judge"] == _judge() else []
    except (ValueError, TypeError, KeyError):
        return []
