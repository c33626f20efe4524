"""What a race of ways came to: speeds beside each other and beside the disk, and rows for the lab's
results."""

import math
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from bench.offload.contests import IN_A_ROW, IN_MEMORY
from bench.offload.race import Outcome, Subject
from bench.offload.way import ASSAY, DISK
from bench.ratio import Ratio, ratio
from bench.results import Measurement

BENCH = "offload"
TOGETHER = 3  # rounds that are drawn as one


@dataclass(frozen=True, slots=True)
class Contest:
    """`kind` says what was raced; `outcomes` are in the order of the ways."""

    kind: str
    subject: Subject
    outcomes: Sequence[Outcome]
    notes: Sequence[str] = ()
    rivals: str = field(default_factory=lambda: secrets.token_hex(4))

    def find(self, name: str) -> Outcome | None:
        """The way of this name, if it has samples."""
        return next((o for o in self.outcomes if o.way.name == name and o.samples), None)

    @property
    def models(self) -> list[Outcome]:
        """All but the disks."""
        return [o for o in self.outcomes if o.way.process.who != DISK]

    def faster(self, outcome: Outcome, than: str) -> Ratio | None:
        """How many times as fast a way is as another."""
        other = self.find(than)
        if not other or not outcome.samples or other is outcome:
            return None
        return ratio(other.seconds, outcome.seconds, together=TOGETHER)

    def of_disk(self, outcome: Outcome, *, busy: bool) -> Ratio | None:
        """Bytes a second, while any were read or all the time, as a share of what the disk gave in
        turns with it, read in a row."""
        disk = self.find(IN_A_ROW)
        samples = [s for s in outcome.samples if s.bytes and (s.busy or not busy)]
        if not disk or not samples or any(math.isnan(s.busy) for s in samples):
            return None
        taken = [(s.busy if busy else s.seconds) / s.bytes for s in samples]
        return ratio([s.seconds / s.bytes for s in disk.samples], taken, together=TOGETHER)

    def best(self, name: str = IN_A_ROW) -> float:
        """Bytes a second that a disk gave at best; NaN where it was not looked at."""
        disk = self.find(name)
        return max(s.bytes / s.seconds for s in disk.samples) if disk else math.nan

    def bound(self, outcome: Outcome, name: str = IN_A_ROW) -> float:
        """Seconds that no token can beat which needs as many bytes of this disk as a way's do, and
        to be computed."""
        computed = self.find(IN_MEMORY)
        seconds = computed.median("seconds") if computed else 0.0
        return max(outcome.median("bytes") / self.best(name), seconds)

    def measurements(self) -> Iterator[Measurement]:
        """A row for each way; of a disk bytes and seconds of a reading."""
        known = self.find(IN_A_ROW) is not None
        for o in self.outcomes:
            process, n_bytes = o.way.process, o.median("bytes")
            disk = process.who == DISK
            limited = known and not disk and o.samples and n_bytes > 0
            yield Measurement(
                BENCH,
                o.way.name,
                contender=ASSAY if disk else process.who,
                shape=self.kind,
                model=self.subject.path.name,
                threads=self.subject.threads,
                settings=settings(o),
                samples=tuple(o.seconds),
                tokens=0 if disk else 1,
                bytes=n_bytes if o.samples else 0.0,
                limit="disk" if limited else "",
                limit_seconds=n_bytes / self.best() if limited else 0.0,
                limit_spread=self._spread() if limited else 0.0,
                rivals=self.rivals,
                note=o.absent,
            )

    def _spread(self) -> float:
        """Of the disk's speed: the range between its quartiles over its best."""
        disk = self.find(IN_A_ROW)
        rates = [s.bytes / s.seconds for s in disk.samples] if disk else [1.0]
        low, high = np.quantile(rates, (0.25, 0.75))
        return float((high - low) / max(rates))


def settings(outcome: Outcome) -> str:
    """E.g. budget=1050MiB,resident=861.6MB,streamed=1208.0MB: what it may use, the weights that are
    in memory, and those that each step reads; of neurons the pool and the share that may stay."""
    process, about = outcome.way.process, outcome.about
    if not process.budget:
        return f"scattered={process.scattered}" if process.scattered else ""
    words = [f"budget={megabytes(process.budget)}"]
    if process.who == ASSAY:
        words += [f"resident={megabytes(about.resident)}", f"streamed={megabytes(about.streamed)}"]
    if about.pool:
        words += [f"pool={megabytes(about.pool)}", f"kept={about.kept:.0%}"]
    return ",".join(words)


def megabytes(n_bytes: float) -> str:
    return f"{n_bytes / 1e6:.1f}MB"


def curves(contest: Contest) -> list[tuple[float, Outcome]]:
    """The ways of a curve and their budgets' shares of the weights."""
    found = [(o.way.process.budget / contest.subject.weights, o) for o in contest.models]
    return [(share, o) for share, o in found if share and o.samples]
