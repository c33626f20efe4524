"""Equivalent mutants, and those that no kernel of this machine reaches, by reason."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from conformance.mutants.mutate import Mutant
from kernels.provenance import cpu_features


@dataclass(frozen=True, slots=True)
class Place:
    """The suffix of a file's path, the prefix of a line in it, the change ("" for any), and the
    axes beyond whose sizes in cases, if not everywhere, it is equivalent."""

    file: str
    begins: str
    what: str = ""
    axis: str = ""

    def has(self, mutant: Mutant) -> bool:
        """Whether this mutant is at this place."""
        return (
            mutant.file.endswith(f"/{self.file}")
            and mutant.text.startswith(self.begins)
            and self.what in ("", mutant.what)
            and self.axis in ("", mutant.axis)
        )


def _read(table: str) -> dict[str, tuple[Place, ...]]:
    """Places by reason, from equivalent.toml."""
    reasons = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())[table]
    return {
        reason: tuple(Place(file, *row) for file, rows in files.items() for row in rows)
        for reason, files in reasons.items()
    }


EQUIVALENT, UNSEEN = _read("equivalent"), _read("unseen")
# Functions that no kernel of a machine with a feature is made of: file, lines that hold a word.
UNREACHED = {
    ("amx_emulated.py", ""): ("amx-tile", "this CPU multiplies tiles itself"),
    ("simd.py", "0x7FFF"): ("f16c", "this CPU widens halves itself"),
}


def unseen(mutant: Mutant) -> str:
    """Why no trial kills a mutant that is wrong; "" if that is not known."""
    return _reason(mutant, UNSEEN)


def _reason(mutant: Mutant, table: Mapping[str, tuple[Place, ...]]) -> str:
    found = (r for r, places in table.items() if any(place.has(mutant) for place in places))
    return next(found, "")


def reason_of(mutant: Mutant) -> str:
    """Why no trial can kill it; "" for one that a trial should kill."""
    file = mutant.file.rpartition("/")[2]
    for (unreached, word), (feature, why) in UNREACHED.items():
        if file == unreached and word in mutant.text and feature in cpu_features():
            return why
    return _reason(mutant, EQUIVALENT)
