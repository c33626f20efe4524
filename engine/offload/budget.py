"""A model's memory budget, and how much of it is left for weights.

The budget is for the whole process: the interpreter and compiled kernels, about 200 MiB, are
included.
"""

import re
from dataclasses import dataclass
from decimal import Decimal

import psutil

from engine.config import ModelError

UNITS = {
    "": 1,
    **{f"{prefix}B": 10 ** (3 * i) for i, prefix in enumerate(("", "k", "M", "G", "T"))},
    **{f"{prefix}iB": 2 ** (10 * i) for i, prefix in enumerate(("K", "M", "G", "T"), start=1)},
}
SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
MIB = 2**20
# Process sizes differ by this much between starts: a refusal names a budget that will do.
VARIES = 8 * MIB


def parse_bytes(size: str | int) -> int:
    """Parse a size such as 600MiB, 1.5GB or 1000000000."""
    found = SIZE.fullmatch(str(size))
    units = {name.lower(): factor for name, factor in UNITS.items()}
    if not found or found[2].lower() not in units:
        raise ModelError(f"ram_budget is {size!r}, which is no size: want e.g. 600MiB or 1.5GB")
    return int(Decimal(found[1]) * units[found[2].lower()])


@dataclass(frozen=True, slots=True)
class Budget:
    """Bytes of memory: the requested `total`, and the parts with other uses than weights: the
    `program` as it is now, the model's `cache`, activations and inputs (`step`), and weights of
    drafters that must stay resident (`drafts`)."""

    total: int
    program: int
    cache: int
    step: int
    drafts: int = 0

    @classmethod
    def now(cls, total: int, cache: int, step: int, drafts: int) -> "Budget":
        """The budget with the process's current size."""
        return cls(total, psutil.Process().memory_info().rss, cache, step, drafts)

    @property
    def room(self) -> int:
        """Bytes left for weights; negative if the budget is too small even without any."""
        return self.total - self.program - self.cache - self.step - self.drafts

    def refuse(self, least: int) -> ModelError:
        """The error for weights of which at least so many bytes must be in memory."""
        parts = {"the program": self.program + VARIES, "the cache": self.cache, "a step": self.step}
        parts |= {"the MTP blocks": self.drafts} if self.drafts else {}
        needed = sum(parts.values()) + least
        listed = ", ".join(f"{_up(size)} for {what}" for what, size in parts.items())
        return ModelError(
            f"a ram_budget of {self.total // MIB} MiB is too small for this model: it needs at"
            f" least {_up(needed)} MiB ({listed}, {_up(least)} for weights); a shorter context and"
            " smaller batches need less"
        )


def _up(size: int) -> int:
    return -(-size // MIB)
