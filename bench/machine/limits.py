"""The machine's limits: probed once, stored, and compared with an op's cost.

A limit is a ceiling: the best of many samples spread over seconds, never a typical one. If a kernel
seems to exceed it, its cost, the clock or the probe is wrong.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import psutil

from bench.machine.probe import UNITS
from bench.machine.trials import Arena, peak_trials, read_caches, working_sets
from bench.machine.trials import Cache as Cache
from bench.race.results import Limit, checked
from kernels.cache import append, read_all
from kernels.cpu.runtime.cores import physical_cores
from kernels.cpu.runtime.team import Team
from kernels.provenance import digest_of, fingerprint, machine, tools
from reference.op import Cost

KEPT = "limits.jsonl"
ROUNDS = 8
FEW_ROUNDS = 4  # seconds per count, where someone waits for the limits of a single call
QUIET = 0.1  # of all CPUs' time, the most that others may take while stored limits are probed
COLD_TURNS = 3  # samples a round of the largest working set, which counts most and is noisiest
# Wider ones hold the products of narrower ones exactly, so kernels may use them for those.
SERVES = {"f32": ("f32", "bf16", "int8"), "bf16": ("bf16", "int8"), "int8": ("int8",)}
Progress = Callable[[int, int], None]
FloatArray = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Rate:
    """The best rate per second, with so many threads.

    Over a `working_set`, the bytes of all threads: bytes that code reads and writes together in a
    loop, of `kind` "read", "copy" or "triad". Without one: operations, a multiply-add being two, of
    the arithmetic "f32", "bf16" or "int8"; `unit` is what reached it, e.g. "amx". `spread` is the
    interquartile range of the samples over their best.
    """

    kind: str
    threads: int
    per_second: float
    spread: float
    working_set: int = 0
    unit: str = ""

    @property
    def what(self) -> tuple[int, int, str]:
        """Key of rates of which the best counts."""
        return self.threads, self.working_set, self.kind


@dataclass(frozen=True, slots=True)
class Limits:
    """The rates probed on this machine, on the day `when`."""

    caches: tuple[Cache, ...]
    rates: tuple[Rate, ...]
    when: str

    @classmethod
    def unprobed(cls) -> "Limits":
        """The caches alone, for callers that need no limits."""
        return cls(read_caches(), (), "")

    def last_level(self) -> int:
        """Bytes of the largest cache."""
        return max((cache.bytes for cache in self.caches), default=0)

    @property
    def bandwidths(self) -> list[Rate]:
        return [rate for rate in self.rates if rate.working_set]

    @property
    def peaks(self) -> list[Rate]:
        return [rate for rate in self.rates if not rate.working_set]

    def bandwidth(self, threads: int, working_set: int | None = None) -> Rate:
        """The fastest way to move a working set: reading, copying or a triad.

        Between two probed sizes the smaller, faster one counts, and none is slower than a larger
        one. Without a working set: beyond every cache.
        """
        known = [b for b in self.bandwidths if b.threads == threads]
        if not known:
            raise self._unknown("bandwidth", threads, [b.threads for b in self.bandwidths])
        sizes = {b.working_set for b in known}
        if working_set is None:
            least = max(sizes)
        else:
            least = max((size for size in sizes if size <= working_set), default=min(sizes))
        return max((b for b in known if b.working_set >= least), key=lambda b: b.per_second)

    def peak(self, arithmetic: str, threads: int) -> Rate:
        """The fastest way to multiply and add."""
        kinds = [p for p in self.peaks if p.kind == arithmetic]
        if not kinds:
            known = ", ".join(sorted({p.kind for p in self.peaks})) or "none"
            raise ValueError(f"no peak was probed of arithmetic {arithmetic!r}: {known}")
        found = [p for p in kinds if p.threads == threads]
        if not found:
            raise self._unknown(f"{arithmetic} peak", threads, [p.threads for p in kinds])
        return max(found, key=lambda p: p.per_second)

    def _unknown(self, what: str, threads: int, known: Sequence[int]) -> ValueError:
        counts = ", ".join(map(str, sorted(set(known)))) or "none"
        return ValueError(f"no {what} was probed for {threads} threads: {counts}")

    def level(self, threads: int, working_set: int | None) -> str:
        """The smallest cache that holds a working set, or "memory"."""
        if working_set is not None:
            for cache in sorted(self.caches, key=lambda c: c.reach(threads)):
                if working_set <= cache.reach(threads):
                    return cache.level
        return "memory"

    def limit(
        self, cost: Cost, arithmetic: str, threads: int, working_set: int | None = None
    ) -> Limit | None:
        """The binding limit of a call of this cost, memory or arithmetic; None for a zero cost."""
        found = []
        if cost.bytes > 0:
            moved = self.bandwidth(threads, working_set)
            name = f"{self.level(threads, working_set)} {moved.kind}"
            found.append(Limit(name, cost.bytes / moved.per_second, moved.spread))
        if cost.operations > 0:
            peak = self.peak(arithmetic, threads)
            seconds = cost.operations / peak.per_second
            found.append(Limit(arithmetic, seconds, peak.spread))
        return max(found, key=lambda limit: limit.seconds, default=None)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> "Limits":
        """Parse the output of `to_json`; a ValueError of one line for anything else."""
        try:
            date.fromisoformat(data["when"])
            caches = tuple(checked(Cache(**row)) for row in data["caches"])
            rates = tuple(checked(Rate(**row)) for row in data["rates"])
            if wrong := [rate for rate in rates if rate.per_second <= 0 or rate.spread < 0]:
                raise ValueError(f"no machine does {wrong[0]}")
            return cls(caches, rates, data["when"])
        except KeyError as error:
            raise ValueError(f"damaged limits: {error.args[0]} is missing") from None
        except (TypeError, ValueError) as error:
            raise ValueError(f"damaged limits: {error}") from None


def probe(
    threads: Sequence[int],
    progress: Progress | None = None,
    rounds: int = ROUNDS,
    moved: Sequence[int] = (),
) -> Limits:
    """Measure now, for each number of threads; some eight seconds each, or, if bandwidths are
    needed only for calls that move so many bytes, one or two.

    Everything is sampled once a round, so that samples of one thing are spread over the whole time
    and a busy moment spoils few of them. `progress` receives samples done and in total.
    """
    counts = _counts(threads)
    caches = read_caches()
    sizes = {count: _needed(working_sets(caches, count), moved) for count in counts}
    arena = Arena(max(size[-1] for size in sizes.values()))
    trials = [
        trial
        for count in counts
        for size in sizes[count]
        for trial in arena.trials(count, size, cached=8 * size <= sizes[count][-1])
    ]
    trials += [trial for count in counts for trial in peak_trials(count)]
    turns = [COLD_TURNS if t.working_set == sizes[t.threads][-1] else 1 for t in trials]
    done, total = 0, len(trials) + rounds * sum(turns)
    rates = {trial.key: np.zeros(rounds) for trial in trials}

    def tell(samples: int) -> None:
        nonlocal done
        done += samples
        if progress:
            progress(done, total)

    with ExitStack() as stack:
        teams = {count: stack.enter_context(Team(count)) for count in counts}
        for trial in trials:
            trial.calibrate(teams[trial.threads])
            tell(1)
        for i in range(rounds):
            for trial, times in zip(trials, turns, strict=True):
                rate = max(trial.rate(teams[trial.threads]) for _ in range(times))
                rates[trial.key][i] = max(rates[trial.key][i], rate)
                tell(times)
    return _limits(caches, rates)


def _needed(sizes: list[int], moved: Sequence[int]) -> list[int]:
    """The working sets that `bandwidth` looks at for calls that move so many bytes, all by default;
    always the largest, for calls on cold caches."""
    if not moved:
        return sizes
    least = {max((size for size in sizes if size <= each), default=sizes[0]) for each in moved}
    return sorted({*least, sizes[-1]})


def _counts(threads: Sequence[int]) -> list[int]:
    if not threads or min(threads) < 1:
        raise ValueError(f"thread counts to probe: want some, each at least 1, got {[*threads]}")
    return sorted(set(threads))


def _limits(caches: tuple[Cache, ...], rates: Mapping[tuple[str, int, int], FloatArray]) -> Limits:
    """The best of each thing's rates, over all units of an arithmetic."""
    found = []
    for (name, threads, working_set), samples in rates.items():
        best = float(samples.max())
        spread = float(np.subtract(*np.percentile(samples, (75, 25)))) / best
        if working_set:
            found.append(Rate(name, threads, best, spread, working_set))
        else:
            serves = SERVES[UNITS[name].arithmetic]
            found += [Rate(kind, threads, best, spread, unit=name) for kind in serves]
    today = datetime.now(UTC).date().isoformat()
    return Limits(caches, _fastest(found), today)


def _fastest(rates: Iterable[Rate]) -> tuple[Rate, ...]:
    """The best of each thing."""
    best = {rate.what: rate for rate in sorted(rates, key=lambda rate: rate.per_second)}
    return tuple(best[what] for what in sorted(best))


def limits(
    threads: Sequence[int] | None = None,
    progress: Progress | None = None,
    again: bool = False,
    moved: Sequence[int] = (),
) -> Limits:
    """The stored limits for these thread counts, default one and all its cores.

    Counts that were never probed here with this code and these tools are probed now and stored, a
    line each. Results from a busy machine are used, but not stored. A virtual machine's memory can
    be twice as fast an hour later: `again` probes all counts anew, and the best of everything ever
    stored counts. With `moved`, bandwidths for calls that move so many bytes are enough.
    """
    counts = _counts(threads if threads is not None else (1, physical_cores()))
    kept = _kept()
    keys = {count: _key_for(count, moved, kept) for count in counts}
    if wanted := [count for count in counts if again or keys[count] not in kept]:
        began, before = time.perf_counter(), _taken_by_others()
        fresh = probe(wanted, progress, FEW_ROUNDS if moved else ROUNDS, moved)
        cpus = psutil.cpu_count() or 1
        others = (_taken_by_others() - before) / (time.perf_counter() - began) / cpus
        found = {count: _of(fresh, count) for count in wanted}
        rows = [{"key": keys[count], "limits": part.to_json()} for count, part in found.items()]
        if others <= QUIET:
            append(KEPT, "".join(json.dumps(row) + "\n" for row in rows).encode())
        for count, part in found.items():
            kept[keys[count]] = _best(kept.get(keys[count]), part)
    parts = [kept[keys[count]] for count in counts]
    return Limits(
        caches=parts[-1].caches,
        rates=tuple(rate for part in parts for rate in part.rates),
        when=min(part.when for part in parts),
    )


def _best(old: Limits | None, new: Limits) -> Limits:
    """The newer limits, with whatever the older ones had faster."""
    return replace(new, rates=_fastest((*old.rates, *new.rates))) if old else new


def _taken_by_others() -> float:
    """CPU seconds so far of other programs and of the virtual machine's host."""
    times = psutil.cpu_times()
    kinds = ("user", "nice", "system", "irq", "softirq", "steal")
    return float(sum(getattr(times, kind, 0.0) for kind in kinds)) - time.process_time()


def _of(whole: Limits, threads: int) -> Limits:
    return replace(whole, rates=tuple(rate for rate in whole.rates if rate.threads == threads))


def _key_for(threads: int, moved: Sequence[int], kept: Mapping[str, Limits]) -> str:
    """The key of limits for calls that move so many bytes: the complete ones if they are stored, or
    their own."""
    every = _key(threads)
    if not moved or every in kept:
        return every
    return _key(threads, _needed(working_sets(read_caches(), threads), moved))


def _key(threads: int, sizes: Sequence[int] = ()) -> str:
    """A digest of the machine, the tools, the sources of the probe, the number of threads, and the
    working sets if they are not all."""
    sources = (
        fingerprint("bench.machine.probe"),
        digest_of("bench.machine.trials", "bench.machine.limits"),
    )
    parts = (machine(), tools(), sources, threads, *sizes)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _kept() -> dict[str, Limits]:
    """The best limits of each key; damaged lines are ignored."""
    found: dict[str, Limits] = {}
    for line in b"".join(read_all(KEPT)).decode(errors="replace").splitlines():
        try:
            row = json.loads(line)
            key = str(row["key"])
            found[key] = _best(found.get(key), Limits.from_json(row["limits"]))
        except (ValueError, TypeError, KeyError):
            continue
    return found
