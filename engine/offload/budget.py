"""What a model may use of memory, and what that leaves for its weights.

A budget is of the whole process: the interpreter and compiled kernels, about 200 MiB, are in it.
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
# By so much a program differs from one start to the next: a refusal names what will do then.
VARIES = 8 * MIB


def parse_bytes(size: str | int) -> int:
    """Bytes of a size such as 600MiB, 1.5GB or 1000000000."""
    found = SIZE.fullmatch(str(size))
    units = {name.lower(): factor for name, factor in UNITS.items()}
    if not found or found[2].lower() not in units:
        raise ModelError(f"ram_budget is {size!r}, which is no size: want e.g. 600MiB or 1.5GB")
    return int(Decimal(found[1]) * units[found[2].lower()])


@dataclass(frozen=True, slots=True)
class Budget:
    """Bytes of memory: the `total` that was asked for, and what of it has another use than weights:
    the `program` as it is now, the model's `cache`, activations and inputs (`step`), and weights
    that have to stay, of what foretells tokens (`drafts`)."""

    total: int
    program: int
    cache: int
    step: int
    drafts: int = 0

    @classmethod
    def now(cls, total: int, cache: int, step: int, drafts: int) -> "Budget":
        """With what the process takes at this moment."""
        return cls(total, psutil.Process().memory_info().rss, cache, step, drafts)

    @property
    def room(self) -> int:
        """For weights; less than nothing if the budget is too small even without any."""
        return self.total - self.program - self.cache - self.step - self.drafts

    def refuse(self, least: int) -> ModelError:
        """The error for weights of which at least so many bytes have to be in memory."""
        parts = {"the program": self.program + VARIES, "the cache": self.cache, "a step": self.step}
        parts |= {"what foretells tokens": self.drafts} if self.drafts else {}
        needed = sum(parts.values()) + least
        listed = ", ".join(f"{_up(size)} for {what}" for what, size in parts.items())
        return ModelError(
            f"a ram_budget of {self.total // MIB} MiB is too small for this model: it needs at"
            f" least {_up(needed)} MiB ({listed}, {_up(least)} for weights); a shorter context and"
            " smaller batches need less"
        )


def _up(size: int) -> int:
    return -(-size // MIB)
