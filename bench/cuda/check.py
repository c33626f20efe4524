"""A check of a GPU while it runs: what it says, what failed, and how long it may take."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from bench.results import Measurement
from kernels.cuda.device import Device


@dataclass(slots=True)
class Log:
    """What is said, with the seconds since the beginning, on the terminal and in a file."""

    file: TextIO
    begun: float

    def __call__(self, text: str) -> None:
        for line in text.splitlines() or [""]:
            words = f"{time.monotonic() - self.begun:6.1f}  {line}"
            print(words, flush=True)
            self.file.write(words + "\n")
        self.file.flush()


@dataclass(slots=True)
class Check:
    """`seconds` for all of it; what it finds is written to `folder` as well. `broken` are the names
    of kernels that did not pass."""

    gpu: Device
    folder: Path
    say: Log
    seconds: float
    failures: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    rows: list[Measurement] = field(default_factory=list)

    def by(self, share: float) -> float:
        """The moment, of time.monotonic(), at which such a share of the time is over."""
        return self.say.begun + share * self.seconds

    def left(self, share: float = 1.0) -> float:
        """Seconds until then."""
        return self.by(share) - time.monotonic()

    def miss(self, what: str) -> None:
        """Something is not run, which is no failure; the end says it once more."""
        self.missed.append(what)
        self.say(f"not run: {what}")

    def fail(self, what: str) -> None:
        self.failures.append(what)
        self.say(f"FAILED {what}")
